# Seconds that tests of eight and more take on two busy cores (docs/testing.md). They order, they do not limit.
foreach(row
    "test-vulkan 125" "integration-npu 61" "exact-host-gemma 50" "matrix-faults-rdna3 60" "matrix-faults-rdna4 35"
    "matrix-kernels 60" "matrix-faults 55" "integration-sleep 54" "test-pull 54" "integration-placement 51"
    "integration-speculate 40" "integration-http-page-talk 36" "integration-http-page 30"
    "integration-http 42" "integration-http-hostile 41" "exact-host-archs 40"
    "integration-bad-input 35" "integration-attacks 34" "integration-memory 34" "integration-recovery 32"
    "integration-hung-file 31" "chaos 30" "golden-host-gemma 30" "integration-dbus-hostile 29" "integration-archs 28"
    "integration-flood 28" "golden-host-archs 25" "soak 23" "test-int8-any-rdna3 22" "test-npu-device 22"
    "gpu-compilers 21" "test-int8-any-rdna4 21" "integration-exact 20" "integration-report 20" "integration-many 18"
    "golden-host-range 17" "integration-dbus-jobs 17" "integration-schema 17" "matrix-golden-attend-rows 17"
    "matrix-golden-f16 17" "matrix-golden-int8 17" "test-daemon-fleet-rings 17" "matrix-golden-attend-sums 16"
    "chaos-measured 15" "golden-host-types 15" "integration-dbus-users 15" "integration-survivor 13"
    "integration-golden 12" "integration-poison 12" "integration-evict 11" "integration-rings 11"
    "integration-sight 11" "test-daemon-fleet-quarantine 11" "test-host-exact 11" "integration-ending 10"
    "integration-embed 9" "integration-http-peers 9" "test-bpe 9" "test-cli-terminal 9" "test-daemon-device-time 9"
    "test-daemon-masks 9" "golden-vulkan-sprout-chained 8" "test-prove-attend 8" "test-pull-lies 48"
    "matrix-few-rows 33" "matrix-tuned-experts 25" "lying-worker 16" "integration-bad-models 10"
    "test-daemon-fleet-starved 10")
  string(REPLACE " " ";" row "${row}")
  list(GET row 0 name)
  list(GET row 1 seconds)
  set_tests_properties(${name} PROPERTIES COST ${seconds})
endforeach()
