/* Heaps as drivers list them: a card of its own with a window onto its memory, and chips that share the machine's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "gpu-worker/vulkan/device/heaps.h"

#define MIB (UINT64_C(1) << 20)
#define LOCAL VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT
#define MAPPED (VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT)
#define CACHED VK_MEMORY_PROPERTY_HOST_CACHED_BIT
#define OWN VK_MEMORY_HEAP_DEVICE_LOCAL_BIT

/* A card with 8 GiB, of which 256 MiB can be mapped. */
static const VkPhysicalDeviceMemoryProperties card = {
        .memoryHeapCount = 3,
        .memoryHeaps = { { 8192 * MIB, OWN }, { 16000 * MIB, 0 }, { 256 * MIB, OWN } },
        .memoryTypeCount = 4,
        .memoryTypes = { { LOCAL, 0 }, { MAPPED, 1 }, { MAPPED | CACHED, 1 }, { LOCAL | MAPPED, 2 } },
};

/* An APU: of the one memory the driver gives two thirds to a heap of the device's own, and the rest to another. */
static const VkPhysicalDeviceMemoryProperties apu = {
        .memoryHeapCount = 2,
        .memoryHeaps = { { 5000 * MIB, 0 }, { 10000 * MIB, OWN } },
        .memoryTypeCount = 5,
        .memoryTypes = { { LOCAL, 1 },
                         { MAPPED, 0 },
                         { LOCAL | MAPPED, 1 },
                         { MAPPED | CACHED, 0 },
                         { LOCAL | VK_MEMORY_PROPERTY_PROTECTED_BIT, 1 } },
};

static void test_counted(void **state)
{
        uint32_t heaps = tdm_vk_heaps_counted(&card, false);

        assert_int_equal(heaps, 1);
        assert_int_equal(tdm_vk_heaps_bytes(&card, heaps), 8192 * MIB); /* the window is not counted twice */
        heaps = tdm_vk_heaps_counted(&apu, true);
        assert_int_equal(heaps, 3);
        assert_int_equal(tdm_vk_heaps_bytes(&apu, heaps), 15000 * MIB);
        assert_int_equal(tdm_vk_heaps_bytes(&apu, tdm_vk_heaps_counted(&apu, false)), 10000 * MIB);
}

static void test_left(void **state)
{
        const VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
                .heapBudget = { 4000 * MIB, 9000 * MIB },
                .heapUsage = { 1000 * MIB, 9500 * MIB }, /* more than it should have */
        };

        assert_int_equal(tdm_vk_heaps_left(&budget, 1), 3000 * MIB);
        assert_int_equal(tdm_vk_heaps_left(&budget, 2), 0);
        assert_int_equal(tdm_vk_heaps_left(&budget, 3), 3000 * MIB);
}

static void test_types(void **state)
{
        /* Where one heap is full the other one is taken. */
        assert_int_equal(tdm_vk_memory_type(&apu, 0x1f, 0, LOCAL, 0), 0);
        assert_int_equal(tdm_vk_memory_type(&apu, 0x1f, 0, LOCAL, 2), 1);
        assert_int_equal(tdm_vk_memory_type(&apu, 0x1f, 0, LOCAL, 3), -1);
        assert_int_equal(tdm_vk_memory_type(&apu, 0x1f, MAPPED, LOCAL, 0), 2);
        assert_int_equal(tdm_vk_memory_type(&apu, 0x1f, MAPPED, CACHED, 0), 3);
        assert_int_equal(tdm_vk_memory_type(&apu, 0x02, MAPPED, LOCAL, 0), 1); /* the only one allowed */
        assert_int_equal(tdm_vk_memory_type(&apu, 0x10, LOCAL, 0, 0), -1);     /* protected memory is never taken */
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_counted), cmocka_unit_test(test_left),
                                            cmocka_unit_test(test_types) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
