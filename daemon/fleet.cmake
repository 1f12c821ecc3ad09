# The fleet's edge to worker.proto, traces, and the test of it.
target_sources(tandem-daemon PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/fleet-wire.c ${CMAKE_CURRENT_SOURCE_DIR}/fleet-unit.c
  ${CMAKE_CURRENT_SOURCE_DIR}/fleet-trace.c
  ${CMAKE_CURRENT_SOURCE_DIR}/fleet-starved.c ${CMAKE_CURRENT_SOURCE_DIR}/fleet-measure.c ${CMAKE_CURRENT_SOURCE_DIR}/fleet-memory.c
  ${CMAKE_CURRENT_SOURCE_DIR}/client-face-trace.c)

if(BUILD_TESTING AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/test-fleet.c)
  tandem_unit_test(test-daemon-fleet test-fleet.c LIBS tandem-daemon)
  target_compile_definitions(test-daemon-fleet PRIVATE TANDEM_BIN_DIR="${CMAKE_RUNTIME_OUTPUT_DIRECTORY}"
    TANDEM_FAULTY_DIR="${CMAKE_BINARY_DIR}/faulty")
  add_dependencies(test-daemon-fleet tandem-npu-worker tandem-gpu-worker)
endif()
