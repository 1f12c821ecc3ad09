# Packages: `cpack -G DEB` in a tree that was configured with -DCMAKE_INSTALL_PREFIX=/usr (preset "package").
#   tandem             the daemon, its workers, the command, units, man pages, completions
#   libtandem0         the client library; its package is called after its soname
#   libtandem-dev      header, pkg-config, examples
#   tandem-xrt         the NPU worker's way to XRT, apart since it needs libxrt; only where XRT's headers were there
#   tandem-model-tale  the small model that tells stories, so that an installation can be tried at once
include(${CMAKE_CURRENT_LIST_DIR}/symbols.cmake)
set(debian ${CMAKE_CURRENT_LIST_DIR}/debian)
set(made ${CMAKE_BINARY_DIR}/debian)
get_target_property(abi libtandem SOVERSION)
set(library_package libtandem${abi})

# ---- what no other folder installs

install(FILES ${CMAKE_SOURCE_DIR}/models/tale.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/tandem/models COMPONENT model)
install(FILES ${CMAKE_SOURCE_DIR}/proto/dev.tandem.Tandem1.xml DESTINATION ${CMAKE_INSTALL_DATADIR}/dbus-1/interfaces
  COMPONENT daemon)

set(completions ${CMAKE_BINARY_DIR}/client-lib/cli/completions)
foreach(command tandem tandemd)
  install(FILES ${completions}/tandem.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME ${command} COMPONENT daemon)
endforeach()
install(FILES ${completions}/_tandem DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT daemon)
install(FILES ${completions}/tandem.fish
  DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d COMPONENT daemon)

# What an installed person reads: messages and manual pages name these, and they each other. A link to what is not
# installed becomes its text.
set(pages chat.md dbus-api.md exactness.md http-api.md npu-kernels.md placement.md sandboxed-apps.md security.md
  serving.md speculation.md structured-output.md)
foreach(page ${pages})
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/docs/${page})
  file(READ ${CMAKE_SOURCE_DIR}/docs/${page} text)
  string(REGEX MATCHALL "\\([a-z0-9_./-]+\\.(md|def|png|svg|xml)(#[a-z0-9_-]+)?\\)" targets "${text}")
  list(REMOVE_DUPLICATES targets)
  foreach(target ${targets})
    string(REGEX REPLACE "^.(.*).$" "\\1" target "${target}")
    string(REGEX REPLACE "#.*" "" file "${target}")
    if(NOT file IN_LIST pages AND NOT file MATCHES "^http-page.*png$")
      string(REPLACE "." "\\." pattern "${target}")
      string(REGEX REPLACE "\\[([^]]*)\\]\\(${pattern}\\)" "\\1" text "${text}")
    endif()
  endforeach()
  file(WRITE ${made}/pages/${page} "${text}")
  install(FILES ${made}/pages/${page} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tandem COMPONENT daemon)
endforeach()
install(FILES ${CMAKE_SOURCE_DIR}/docs/http-page.png ${CMAKE_SOURCE_DIR}/docs/http-page-pictures.png
  DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/tandem COMPONENT daemon)

# All that is installed and nothing else, no tests: what `./bootstrap demo` builds, so that installing works after it.
set(installed tandemd tandem tandem-pull tandem-npu-worker tandem-gpu-worker tandem-picture-worker tandem-http
    libtandem completions)
foreach(maybe tandem-xrt tandem-picture-decoder man-pages)
  if(TARGET ${maybe})
    list(APPEND installed ${maybe})
  endif()
endforeach()
add_custom_target(programs DEPENDS ${installed})

# Every package has its own copyright and changelog; gzip -n leaves times out, so that two builds are equal.
find_program(GZIP gzip)
configure_file(${debian}/changelog.in ${made}/changelog @ONLY)
if(GZIP)
  execute_process(COMMAND ${GZIP} -9nc ${made}/changelog OUTPUT_FILE ${made}/changelog.Debian.gz)
endif()
set(pairs daemon:tandem library:${library_package} development:libtandem-dev model:tandem-model-tale)
if(TARGET tandem-xrt)
  list(APPEND pairs xrt:tandem-xrt)
endif()
foreach(pair ${pairs})
  string(REPLACE ":" ";" pair ${pair})
  list(GET pair 0 component)
  list(GET pair 1 package)
  install(FILES ${CMAKE_SOURCE_DIR}/debian/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
    COMPONENT ${component} PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  if(GZIP)
    install(FILES ${made}/changelog.Debian.gz
      DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
  endif()
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
endforeach()

# The maintainer scripts, without the line that debhelper replaces in debian/.
foreach(script postinst prerm postrm)
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${debian}/${script})
  file(READ ${debian}/${script} text)
  string(REPLACE "#DEBHELPER#\n" "" text "${text}")
  file(WRITE ${made}/${script} "${text}")
  file(CHMOD ${made}/${script} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ
    WORLD_EXECUTE)
endforeach()

# ---- cpack

set(CPACK_PACKAGE_NAME tandem)
# Empty, so that each component's first line is its own synopsis.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(CPACK_PACKAGE_VENDOR "The Tandem authors")
set(CPACK_PACKAGE_CONTACT "The Tandem authors <maintainers@tandem.example>")
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL daemon library development model)
if(TARGET tandem-xrt)
  list(APPEND CPACK_COMPONENTS_ALL xrt)
endif()
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
# /etc and the unit folders are absolute: they go below DESTDIR with everything else.
set(CPACK_SET_DESTDIR ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_COMPONENT_DAEMON_DESCRIPTION "language models on a machine's NPU and GPU together
Tandem runs language models as a system service. Applications ask for text
over D-Bus, shells over a socket; the NPU and the GPU are driven by processes
of their own, which may crash, hang or be restarted without anybody losing a
token.
.
This package has the daemon, its workers and the tandem command.")
set(CPACK_DEBIAN_DAEMON_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_DAEMON_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
string(JOIN ", " CPACK_DEBIAN_DAEMON_PACKAGE_DEPENDS
  "${library_package} (= ${PROJECT_VERSION}-1)" "init-system-helpers (>= 1.54)"
  "systemd | systemd-standalone-sysusers" "systemd | systemd-standalone-tmpfiles")
set(CPACK_DEBIAN_DAEMON_PACKAGE_RECOMMENDS
  "tandem-model-tale, default-dbus-system-bus | dbus-system-bus, polkitd, libvulkan1")
set(CPACK_DEBIAN_DAEMON_PACKAGE_SUGGESTS "mesa-vulkan-drivers, tandem-xrt, libtandem-dev")
set(CPACK_DEBIAN_DAEMON_PACKAGE_CONTROL_EXTRA
  "${made}/postinst;${made}/prerm;${made}/postrm;${debian}/conffiles")

tandem_debian_symbols(
  ${CMAKE_SOURCE_DIR}/client-lib/libtandem.map libtandem.so.${abi} ${library_package} ${made}/symbols)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "client library of the Tandem language model service
libtandem lets a C program have text generated, tokenized or scored by the
Tandem daemon, blocking or from an event loop.")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_RECOMMENDS tandem)
# Not CPack's own shlibs, nor its scripts that call ldconfig (without-ldconfig.cmake): a trigger does that.
file(CONFIGURE OUTPUT ${made}/shlibs CONTENT "libtandem ${abi} ${library_package} (>= ${PROJECT_VERSION})\n" @ONLY)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA "${made}/symbols;${made}/shlibs;${debian}/triggers")

set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "client library of the Tandem language model service (development)
Header, pkg-config file and examples for programs that use libtandem or the
D-Bus interface dev.tandem.Tandem1.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${library_package} (= ${PROJECT_VERSION}-1)")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "tandem, python3-gi")

set(CPACK_COMPONENT_XRT_DESCRIPTION "language models on a machine's NPU and GPU together (XRT)
What Tandem's NPU worker needs to drive an AMD NPU: the module that connects
it to XRT. Programs for the NPU are not part of it; docs/npu-kernels.md in
the sources says how they are built.")
set(CPACK_DEBIAN_XRT_PACKAGE_SECTION utils)
set(CPACK_DEBIAN_XRT_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_XRT_PACKAGE_DEPENDS "tandem (= ${PROJECT_VERSION}-1)")

set(CPACK_COMPONENT_MODEL_DESCRIPTION "small story-telling language model for Tandem
A Gemma 3 model of 14 MB, trained from scratch on children's books in the
public domain. It is there to try out an installation of Tandem, and tells
short tales in English.")
set(CPACK_DEBIAN_MODEL_PACKAGE_SECTION science)
set(CPACK_DEBIAN_MODEL_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_MODEL_PACKAGE_ENHANCES tandem)
set(CPACK_POST_BUILD_SCRIPTS ${debian}/without-ldconfig.cmake)
include(CPack)
