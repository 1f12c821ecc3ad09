# cmake -DIN=FILE -DOUT=FILE.c -DNAME=SYMBOL -DHEADER=FILE.h -P embed.cmake: a text file as a C string, declared in the
# header, so that what is installed, what is documented and what a program answers are one file.
get_filename_component(file ${IN} NAME)
set(text "/* made from ${file} by embed.cmake */\n#include \"${HEADER}\"\n\n")
string(APPEND text "const char ${NAME}[] =\n")
file(READ ${IN} content)
string(REPLACE "\\" "\\\\" content "${content}")
string(REPLACE "\"" "\\\"" content "${content}")
string(REPLACE "\n" "\\n\"\n        \"" content "${content}")
file(WRITE ${OUT} "${text}        \"${content}\";\n")
