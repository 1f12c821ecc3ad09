/* Asks the loader which layers it has: see layers.h. */
#include "gpu-worker/vulkan/tests/layers.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vulkan/vulkan_core.h>

#define LAYERS_MAX 256u

static bool is_among(const char *name, const VkLayerProperties *layers, uint32_t n)
{
        for (uint32_t i = 0; i < n; i++)
                if (strcmp(layers[i].layerName, name) == 0)
                        return true;
        return false;
}

bool layer_is_missing(void)
{
        static VkLayerProperties layers[LAYERS_MAX];
        const char *wanted = getenv("VK_INSTANCE_LAYERS");
        PFN_vkEnumerateInstanceLayerProperties enumerate = NULL;
        uint32_t n = LAYERS_MAX;
        bool missing = false;
        void *library;
        char *names, *at;

        if (!wanted || !*wanted)
                return false;
        library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
        if (library)
                *(void **)&enumerate = dlsym(library, "vkEnumerateInstanceLayerProperties");
        if (!enumerate || enumerate(&n, layers) < 0)
                n = 0;
        names = strdup(wanted);
        if (!names)
                abort();
        for (char *name = strtok_r(names, ":", &at); name && !missing; name = strtok_r(NULL, ":", &at)) {
                missing = !is_among(name, layers, n);
                if (missing)
                        fprintf(stderr, "skipped: the layer %s is not installed (Debian: vulkan-validationlayers)\n",
                                name);
        }
        free(names);
        if (library)
                dlclose(library);
        return missing;
}
