
	request-2" 122h :X