# The fleet's edge to worker.proto, and its test.
target_sources(tandem-daemon PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/fleet-wire.c)

if(EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/test-fleet.c)
  tandem_unit_test(test-daemon-fleet test-fleet.c LIBS tandem-daemon)
endif()
