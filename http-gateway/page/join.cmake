# cmake -DIN=page.html -DOUT=FILE -P join.cmake: the page as one file. A line "/* join NAME */" becomes that file, which
# lies beside page.html.
get_filename_component(folder ${IN} DIRECTORY)
file(READ ${IN} page)
string(REGEX MATCHALL "/\\* join [a-z.-]+ \\*/" marks "${page}")
foreach(mark IN LISTS marks)
  string(REGEX REPLACE "^/\\* join ([a-z.-]+) \\*/$" "\\1" name "${mark}")
  file(READ ${folder}/${name} content)
  string(REPLACE "${mark}" "${content}" page "${page}")
endforeach()
file(WRITE ${OUT} "${page}")
