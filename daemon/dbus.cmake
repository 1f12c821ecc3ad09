# The D-Bus face. Only these sources know libdbus.
pkg_check_modules(DBUS REQUIRED IMPORTED_TARGET dbus-1>=1.12)
set(bus_xml ${CMAKE_SOURCE_DIR}/proto/dev.tandem.Tandem1.xml)
set(bus_xml_c ${CMAKE_CURRENT_BINARY_DIR}/dbus-xml.c)
add_custom_command(OUTPUT ${bus_xml_c}
  COMMAND ${CMAKE_COMMAND} -DIN=${bus_xml} -DOUT=${bus_xml_c} -DNAME=bus_introspection_xml -P ${CMAKE_CURRENT_SOURCE_DIR}/dbus-embed.cmake
  DEPENDS ${bus_xml} dbus-embed.cmake VERBATIM)
target_sources(tandem-daemon PRIVATE ${bus_xml_c} dbus-bus.c dbus-peer.c dbus-polkit.c dbus-objects.c dbus-manager.c
  dbus-options.c dbus-job.c dbus-job-object.c dbus-stream.c dbus-status.c dbus-units.c dbus-writer.c)
target_link_libraries(tandem-daemon PUBLIC PkgConfig::DBUS)
install(FILES ${bus_xml} DESTINATION ${CMAKE_INSTALL_DATADIR}/dbus-1/interfaces)
tandem_unit_test(test-daemon-dbus-parts test-dbus-parts.c LIBS tandem-daemon)
