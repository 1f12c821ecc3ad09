# cmake -DIN=FILE -DOUT=FILE.c -DNAME=SYMBOL -P embed.cmake: a text file as a C string, so that what is installed,
# what is documented and what the daemon answers are one file.
set(text "/* made from the introspection XML by embed.cmake */\n#include \"daemon/faces/dbus/private.h\"\n\n")
string(APPEND text "const char ${NAME}[] =\n")
file(READ ${IN} content)
string(REPLACE "\\" "\\\\" content "${content}")
string(REPLACE "\"" "\\\"" content "${content}")
string(REPLACE "\n" "\\n\"\n        \"" content "${content}")
file(WRITE ${OUT} "${text}        \"${content}\";\n")
