# After CPack has made the packages: the library's own loses the scripts that CPack writes for it. They call ldconfig,
# and dpkg's trigger (triggers) does that once for all packages.
foreach(package ${CPACK_PACKAGE_FILES})
  get_filename_component(name ${package} NAME)
  if(NOT name MATCHES "^libtandem[0-9]")
    continue()
  endif()
  set(folder ${package}.d)
  execute_process(COMMAND dpkg-deb -R ${package} ${folder} COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE ${folder}/DEBIAN/postinst ${folder}/DEBIAN/postrm)
  execute_process(COMMAND dpkg-deb --root-owner-group -b ${folder} ${package} OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  file(REMOVE_RECURSE ${folder})
endforeach()
