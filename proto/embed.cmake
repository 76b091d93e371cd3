# Writes OUT, a C file with the bytes of the descriptor set IN (proto/descriptors.h declares them).
file(READ ${IN} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "#include \"proto/descriptors.h\"

const unsigned char proto_descriptor_set[] = {
${bytes}
};
const size_t proto_descriptor_set_size = sizeof proto_descriptor_set;
")
