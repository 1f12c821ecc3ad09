# tandem_embed_spirv(TARGET NAME FILES...): the target gets the words of .spv files as they are, by the assembler, and a
# header NAME.h. The file a-b.spv is tdm_spirv_a_b, up to tdm_spirv_a_b_end.
function(tandem_embed_spirv target name)
  set(header "/* made by embed-spirv.cmake */\n#pragma once\n\n#include <stdint.h>\n\n")
  set(source "/* made by embed-spirv.cmake */\n#include \"${name}.h\"\n\n")
  # The section is the one of constants; words are aligned as uint32_t is.
  foreach(file ${ARGN})
    get_filename_component(symbol ${file} NAME_WE)
    string(REPLACE "-" "_" symbol "tdm_spirv_${symbol}")
    string(APPEND header "extern const uint32_t ${symbol}[] __attribute__((visibility(\"hidden\"))),\n"
      "        ${symbol}_end[] __attribute__((visibility(\"hidden\")));\n")
    string(APPEND source "__asm__(\".pushsection .rodata\\n\"\n        \".balign 4\\n\"\n"
      "        \".globl ${symbol}, ${symbol}_end\\n\"\n        \".hidden ${symbol}, ${symbol}_end\\n\"\n"
      "        \"${symbol}: .incbin \\\"${file}\\\"\\n\"\n        \"${symbol}_end:\\n\"\n"
      "        \".popsection\");\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.h CONTENT "${header}" @ONLY)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${name}.c CONTENT "${source}" @ONLY)
  set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/${name}.c PROPERTIES OBJECT_DEPENDS "${ARGN}")
  target_sources(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${name}.c)
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()
