/* The Vulkan loader leaves a layer out without a word where it is not installed. A test that wants one asks here first:
 * without the layer it would pass and prove nothing. */
#ifndef TDM_GPU_WORKER_VULKAN_TESTS_LAYERS_H
#define TDM_GPU_WORKER_VULKAN_TESTS_LAYERS_H

#include <stdbool.h>

/* true: VK_INSTANCE_LAYERS names a layer that the loader does not have, and stderr says which. */
bool layer_is_missing(void);

#endif
