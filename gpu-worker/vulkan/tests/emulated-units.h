/* Kernels for f16 matrix units on devices that have none, as Vulkan on a CPU: the same shaders, with a unit's product
 * computed element by element (shaders/common/units-emulated.glsl). Slow; for tests. */
#ifndef TDM_GPU_WORKER_VULKAN_TESTS_EMULATED_UNITS_H
#define TDM_GPU_WORKER_VULKAN_TESTS_EMULATED_UNITS_H

/* Emulates the units of every device that is opened from now on and has none. It does nothing where
 * $TANDEM_TEST_SHIPPED_KERNELS is set: there the kernels that ship have to run. */
void emulate_units(void);

#endif
