# Writes OUT, a C file with the bytes of the file IN as NAME and their number as NAME_size. HEADER declares both.
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "#include \"${HEADER}\"

const unsigned char ${NAME}[] = {
${bytes}
};
const size_t ${NAME}_size = sizeof ${NAME};
")
