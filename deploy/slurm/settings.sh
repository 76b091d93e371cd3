# SPDX-License-Identifier: Apache-2.0
# Settings of the jobs of one cluster. Options of the programs are in router.conf, speculator.conf and group.conf.

# BIN=/opt/forepack/bin      # programs, by default /usr/bin
# ADDRESS=login1.example.org # of the router's host for nodes and clients, by default its full name
# LISTEN=10.0.0.5            # address that the router listens on, by default all
# NODE_PORT=50052 HTTP_PORT=8000
# MPI=pmix                   # type of srun --mpi for groups of several ranks; srun --mpi=list names all
# STARTS=10                  # a job that was never ready is requeued so often
