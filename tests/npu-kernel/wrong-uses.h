/* The table of wrong uses, each committed by a function of a few lines; part of test-npu-kernel.c. A row says which
 * kernel, what must come back, and a word of the reason, so that no row passes because something else was wrong. */
#ifndef TESTS_NPU_KERNEL_WRONG_USES_H
#define TESTS_NPU_KERNEL_WRONG_USES_H

enum stage { OPENED, HEAP, READY };

#define USE(name) static int name(struct npu *n)

/* ---- buffers ---- */

USE(bo_flags)
{
        struct xdna_create_bo c = { .flags = 1, .type = XDNA_BO_SHARE, .size = 4096 };
        return CALL(n->fd, XDNA_NR_CREATE_BO, &c);
}
USE(bo_no_bytes)
{
        return create(n, XDNA_BO_SHARE, 0, &n->a);
}
USE(bo_bad_type)
{
        return create(n, 9, 4096, &n->a);
}
USE(bo_user_early)
{
        struct xdna_create_bo c = { .vaddr = (uintptr_t)n, .type = XDNA_BO_SHARE, .size = 4096 };
        return CALL(n->fd, XDNA_NR_CREATE_BO, &c);
}
static int user_table(struct npu *n, uint64_t vaddr, uint64_t len, uint32_t n_entries)
{
        struct {
                int32_t fd;
                uint32_t n_entries;
                uint64_t vaddr, len;
        } table = { -1, n_entries, vaddr, len };
        struct xdna_create_bo c = { .vaddr = (uintptr_t)&table, .type = XDNA_BO_SHARE };
        return CALL(n->fd, XDNA_NR_CREATE_BO, &c);
}
USE(user_unaligned)
{
        return user_table(n, 0x10010, 4096, 1);
}
USE(user_part_page)
{
        return user_table(n, 0x10000, 100, 1);
}
USE(user_no_table)
{
        struct xdna_create_bo c = { .vaddr = 16, .type = XDNA_BO_SHARE };
        return CALL(n->fd, XDNA_NR_CREATE_BO, &c);
}
USE(heap_size)
{
        return create(n, XDNA_BO_HEAP, HEAP_BYTES - 4096, &n->heap);
}
USE(heap_second)
{
        return create(n, XDNA_BO_HEAP, HEAP_BYTES, &n->a);
}
USE(heap_too_much)
{
        return create(n, XDNA_BO_HEAP, UINT64_C(512) << 20, &n->a);
}
USE(device_without_heap)
{
        return create(n, XDNA_BO_DEV, 4096, &n->a);
}
USE(device_unmapped_heap)
{
        munmap(n->heap_at, HEAP_BYTES);
        n->heap_at = NULL;
        return create(n, XDNA_BO_DEV, 4096, &n->a);
}
USE(device_too_large)
{
        return create(n, XDNA_BO_DEV, HEAP_BYTES + 4096, &n->a);
}
USE(heap_full)
{
        assert_int_equal(create(n, XDNA_BO_DEV, HEAP_BYTES, &n->a), 0);
        return create(n, XDNA_BO_DEV, 4096, &n->b);
}
USE(info_extension)
{
        struct xdna_bo_info info = { .ext = 1, .handle = n->heap };
        return CALL(n->fd, XDNA_NR_BO_INFO, &info);
}
USE(info_stale)
{
        struct xdna_bo_info info = { .handle = n->a };
        struct drm_handle_pad c = { .handle = n->a };

        assert_int_equal(CALL(n->fd, DRM_NR_GEM_CLOSE, &c), 0);
        return CALL(n->fd, XDNA_NR_BO_INFO, &info);
}
USE(close_twice)
{
        struct drm_handle_pad c = { .handle = n->a };

        assert_int_equal(CALL(n->fd, DRM_NR_GEM_CLOSE, &c), 0);
        return CALL(n->fd, DRM_NR_GEM_CLOSE, &c);
}
USE(handle_of_another)
{
        struct drm_handle_pad c = { .handle = 900 };
        return CALL(n->fd, DRM_NR_GEM_CLOSE, &c);
}
USE(sync_direction)
{
        return sync_bo(n, n->a, 7, 16);
}
USE(sync_beyond)
{
        struct xdna_sync_bo s = { .handle = n->a, .offset = 4096, .size = 16 };
        return CALL(n->fd, XDNA_NR_SYNC_BO, &s);
}
USE(sync_overflow)
{
        struct xdna_sync_bo s = { .handle = n->a, .offset = 16, .size = UINT64_MAX };
        return CALL(n->fd, XDNA_NR_SYNC_BO, &s);
}
static int map_error(struct npu *n, uint64_t offset, size_t size, int flags)
{
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, n->fd, (off_t)offset);

        if (p == MAP_FAILED)
                return errno;
        munmap(p, size);
        return 0;
}
USE(map_nothing)
{
        return map_error(n, 0x1000, 4096, MAP_SHARED);
}
USE(map_too_much)
{
        return map_error(n, info_of(n, n->a).map_offset, 8192, MAP_SHARED);
}
USE(map_of_another)
{
        struct npu other;
        int r;

        open_npu(&other);
        r = map_error(&other, info_of(n, n->a).map_offset, 4096, MAP_SHARED);
        close(other.fd);
        return r;
}
USE(export_device)
{
        struct drm_prime p = { .handle = n->instructions, .flags = O_CLOEXEC };
        return CALL(n->fd, DRM_NR_PRIME_EXPORT, &p);
}
USE(export_flags)
{
        struct drm_prime p = { .handle = n->a, .flags = 0x10 };
        return CALL(n->fd, DRM_NR_PRIME_EXPORT, &p);
}
USE(import_memfd)
{
        struct drm_prime p = { .fd = memfd_create("amdxdna-bo", MFD_ALLOW_SEALING) };
        int r = CALL(n->fd, DRM_NR_PRIME_IMPORT, &p);

        close(p.fd);
        return r;
}
USE(import_nothing)
{
        struct drm_prime p = { .fd = 987 };
        return CALL(n->fd, DRM_NR_PRIME_IMPORT, &p);
}

/* ---- contexts ---- */

USE(context_extension)
{
        struct xdna_create_context c = { .ext = 1, .n_tiles = 4 };
        return CALL(n->fd, XDNA_NR_CREATE_CONTEXT, &c);
}
USE(context_qos)
{
        struct xdna_create_context c = { .qos = 16, .n_tiles = 4 };
        return CALL(n->fd, XDNA_NR_CREATE_CONTEXT, &c);
}
USE(context_without_heap)
{
        return create_context(n, 4);
}
USE(context_unmapped_heap)
{
        munmap(n->heap_at, HEAP_BYTES);
        n->heap_at = NULL;
        return create_context(n, 4);
}
USE(context_no_tiles)
{
        return create_context(n, 0);
}
USE(context_too_wide)
{
        return create_context(n, 9 * 4);
}
USE(contexts_too_many)
{
        for (unsigned i = 0; i < 16; i++)
                assert_int_equal(create_context(n, 4), 0);
        return create_context(n, 4);
}
USE(context_destroyed_twice)
{
        struct xdna_destroy_context d = { .handle = n->context };

        assert_int_equal(CALL(n->fd, XDNA_NR_DESTROY_CONTEXT, &d), 0);
        return CALL(n->fd, XDNA_NR_DESTROY_CONTEXT, &d);
}
USE(config_twice)
{
        return configure(n, n->pdi, 1);
}
USE(config_nothing)
{
        assert_int_equal(create_context(n, 4), 0);
        return configure(n, n->pdi, 0);
}
USE(config_beyond)
{
        assert_int_equal(create_context(n, 4), 0);
        return configure(n, n->pdi, 30);
}
USE(config_shared_image)
{
        assert_int_equal(create_context(n, 4), 0);
        return configure(n, n->a, 1);
}
USE(config_bad_image)
{
        assert_int_equal(create_context(n, 4), 0);
        return configure(n, n->instructions, 1);
}
USE(config_unsynced_image)
{
        uint32_t bo, *at;

        assert_int_equal(create_context(n, 4), 0);
        assert_int_equal(create(n, XDNA_BO_DEV, 4096, &bo), 0);
        at = (uint32_t *)(uintptr_t)info_of(n, bo).vaddr;
        at[0] = 0x49445054;
        return configure(n, bo, 1);
}
USE(config_large)
{
        struct xdna_config_context c = { .handle = n->context, .value = (uintptr_t)n, .value_bytes = 8192 };
        return CALL(n->fd, XDNA_NR_CONFIG_CONTEXT, &c);
}
USE(config_debug)
{
        struct xdna_config_context c = { .handle = n->context, .type = XDNA_CONFIG_DEBUG_ON, .value = n->a };
        return CALL(n->fd, XDNA_NR_CONFIG_CONTEXT, &c);
}

/* ---- submissions ---- */

USE(execute_two)
{
        struct xdna_execute e = { .context = n->context, .commands = n->command, .n_commands = 2 };
        return CALL(n->fd, XDNA_NR_EXECUTE, &e);
}
USE(execute_kind)
{
        struct xdna_execute e = { .context = n->context, .commands = n->command, .n_commands = 1, .type = 1 };
        return CALL(n->fd, XDNA_NR_EXECUTE, &e);
}
USE(execute_no_command)
{
        return execute(n, n->a, NULL, 0);
}
USE(execute_stale_argument)
{
        return execute(n, n->command, (uint32_t[]){ 777 }, 1);
}
USE(execute_bad_list)
{
        return execute(n, n->command, (uint32_t *)16, 4);
}
USE(execute_no_context)
{
        n->context = 200;
        return run(n);
}
USE(execute_not_configured)
{
        assert_int_equal(create_context(n, 4), 0);
        return run(n);
}

/* ---- commands ---- */

static void set_address(struct npu *n, unsigned word, uint64_t address)
{
        memcpy(n->command_at + word, &address, 8);
}
USE(command_op)
{
        n->command_at[0] = (n->command_at[0] & ~(0x1fu << 23)) | 9u << 23;
        return run(n);
}
USE(command_short)
{
        n->command_at[0] = ERT_NEW | 1 << 12;
        return run(n);
}
USE(command_few)
{
        n->command_at[0] = ERT_NEW | 9 << 12;
        return run(n);
}
USE(command_no_cu)
{
        n->command_at[1] = 2;
        return run(n);
}
USE(command_opcode)
{
        n->command_at[2] = 4;
        return run(n);
}
USE(instructions_unaligned)
{
        set_address(n, 4, n->instructions_address + 4);
        return run(n);
}
USE(instructions_shared)
{
        memcpy(n->a_at, n->instructions_at, 64);
        set_address(n, 4, (uintptr_t)n->a_at);
        return run(n);
}
USE(instructions_beyond)
{
        set_address(n, 4, n->instructions_address + 4080);
        return run(n);
}
USE(instructions_wild)
{
        set_address(n, 4, UINT64_C(0x7000000));
        return run(n);
}
USE(instructions_garbage)
{
        n->instructions_at[0] ^= 1;
        return run(n);
}
USE(instructions_unsynced)
{
        n->instructions_at[4] ^= 1;
        return run(n);
}
USE(argument_wild)
{
        set_address(n, 8, 0x10000);
        return run(n);
}
USE(argument_unaligned)
{
        set_address(n, 8, (uintptr_t)n->a_at + 2);
        return run(n);
}
USE(argument_beyond)
{
        set_address(n, 10, (uintptr_t)n->b_at + 4096 - 64);
        return run(n);
}
USE(argument_closed)
{
        munmap(n->a_at, 4096);
        n->a_at = NULL;
        return run(n);
}
USE(output_overlaps)
{
        set_address(n, 12, (uintptr_t)n->b_at);
        return run(n);
}
USE(data_unsynced)
{
        n->a_at[3] ^= 1;
        return run(n);
}
USE(chain_long)
{
        n->command_at[0] = ERT_NEW | 6 << 12 | (uint32_t)ERT_CHAIN << 23;
        n->command_at[1] = 50;
        return run(n);
}
USE(chain_no_command)
{
        n->command_at[0] = ERT_NEW | 8 << 12 | (uint32_t)ERT_CHAIN << 23;
        n->command_at[1] = 1;
        set_address(n, 7, n->a);
        return run(n);
}

/* ---- sync objects, questions ---- */

USE(wait_not_submitted)
{
        return wait_for(n, n->syncobj, 100, 1000000, 0);
}
USE(wait_too_long)
{
        return wait_for(n, n->syncobj, 100, 1000000, DRM_WAIT_FOR_SUBMIT);
}
USE(wait_flags)
{
        return wait_for(n, n->syncobj, 0, 1000000, 64);
}
USE(wait_stale)
{
        return wait_for(n, 99, 0, 1000000, 0);
}
USE(wait_bad_list)
{
        struct drm_timeline_wait w = { .handles = 16, .points = 16, .n_handles = 1 };
        return CALL(n->fd, DRM_NR_TIMELINE_WAIT, &w);
}
USE(syncobj_destroyed_twice)
{
        struct drm_handle_pad d = { .handle = n->syncobj };

        assert_int_equal(CALL(n->fd, DRM_NR_SYNCOBJ_DESTROY, &d), 0);
        return CALL(n->fd, DRM_NR_SYNCOBJ_DESTROY, &d);
}
USE(syncobj_from_file)
{
        struct drm_syncobj_fd s = { .fd = memfd_create("none", 0) };
        int r = CALL(n->fd, DRM_NR_SYNCOBJ_IMPORT, &s);

        close(s.fd);
        return r;
}
USE(ask_unknown)
{
        struct xdna_get_info info = { .param = 99, .size = 64, .buffer = (uintptr_t)n };
        return CALL(n->fd, XDNA_NR_GET_INFO, &info);
}
USE(ask_nowhere)
{
        struct xdna_get_info info = { .param = XDNA_INFO_METADATA, .size = 64, .buffer = 16 };
        return CALL(n->fd, XDNA_NR_GET_INFO, &info);
}
USE(ask_array_early)
{
        struct xdna_get_array a = { .element_size = 64, .n_elements = 1, .buffer = (uintptr_t)n };
        return CALL(n->fd, XDNA_NR_GET_ARRAY, &a);
}
USE(ask_telemetry_small)
{
        struct xdna_get_info info = { .param = XDNA_INFO_TELEMETRY, .size = 64, .buffer = (uintptr_t)n };
        return CALL(n->fd, XDNA_NR_GET_INFO, &info);
}
static int power(struct npu *n, uint8_t mode, uint8_t pad)
{
        uint8_t state[8] = { mode, pad };
        struct xdna_get_info set = { .param = XDNA_SET_POWER_MODE, .size = 8, .buffer = (uintptr_t)state };
        return CALL(n->fd, XDNA_NR_SET_STATE, &set);
}
USE(power_unknown)
{
        return power(n, 5, 0);
}
USE(power_padding)
{
        return power(n, 1, 1);
}
USE(wait_command_out_of_tree)
{
        struct xdna_sync_bo w = { .handle = n->context };
        return CALL(n->fd, XDNA_NR_WAIT_OUT_OF_TREE, &w);
}

static const struct {
        const char *name;
        enum server server;
        enum stage stage;
        int (*use)(struct npu *n);
        int result;      /* an errno, or STATE() of the command */
        const char *why; /* part of the server's reason; "" where the library or the memory manager refuses */
} uses[] = {
#define ROW(use, server, stage, result, why)                                                                           \
        {                                                                                                              \
#use, server, stage, use, result, why                                                                  \
        }
        ROW(bo_flags, FIRST, OPENED, EINVAL, "flags"),
        ROW(bo_no_bytes, FIRST, OPENED, EINVAL, "of 0 bytes"),
        ROW(bo_bad_type, FIRST, OPENED, EINVAL, "type 9"),
        ROW(bo_user_early, FIRST, OPENED, EINVAL, "does not take"),
        ROW(user_unaligned, LATE, OPENED, EINVAL, "whole pages"),
        ROW(user_part_page, LATE, OPENED, EINVAL, "whole pages"),
        ROW(user_no_table, LATE, OPENED, EINVAL, "cannot be read"),
        ROW(heap_size, FIRST, OPENED, EINVAL, "a heap of"),
        ROW(heap_second, FIRST, HEAP, EBUSY, "second heap"),
        ROW(heap_too_much, LATE, HEAP, ENOSPC, "heaps of more"),
        ROW(device_without_heap, FIRST, OPENED, EINVAL, "without a heap"),
        ROW(device_without_heap, LATE, OPENED, EAGAIN, "without a heap"),
        ROW(device_unmapped_heap, FIRST, HEAP, EINVAL, "not mapped"),
        ROW(device_unmapped_heap, LATE, HEAP, EAGAIN, "not mapped"),
        ROW(device_too_large, FIRST, HEAP, ENOSPC, "no room"),
        ROW(heap_full, FIRST, HEAP, ENOSPC, "no room"),
        ROW(heap_full, LATE, HEAP, EAGAIN, "no room"),
        ROW(info_extension, FIRST, HEAP, EINVAL, "extension"),
        ROW(info_stale, FIRST, READY, ENOENT, "names nothing"),
        ROW(close_twice, FIRST, READY, EINVAL, "names nothing"),
        ROW(handle_of_another, FIRST, READY, EINVAL, "names nothing"),
        ROW(sync_direction, FIRST, READY, EINVAL, "direction 7"),
        ROW(sync_beyond, FIRST, READY, EINVAL, "a sync at"),
        ROW(sync_overflow, FIRST, READY, EINVAL, "a sync at"),
        ROW(map_nothing, FIRST, READY, EINVAL, "no buffer of this file"),
        ROW(map_too_much, FIRST, READY, EINVAL, "mapping 8192"),
        ROW(map_of_another, FIRST, READY, EINVAL, "no buffer of this file"),
        ROW(export_device, LATE, READY, EOPNOTSUPP, "device buffer"),
        ROW(export_flags, LATE, READY, EINVAL, "export"),
        ROW(import_memfd, LATE, READY, EINVAL, "no dma-buf"),
        ROW(import_nothing, LATE, READY, EBADF, "not open"),
        ROW(context_extension, FIRST, HEAP, EINVAL, "extension"),
        ROW(context_qos, FIRST, HEAP, EFAULT, "cannot be read"),
        ROW(context_without_heap, FIRST, OPENED, ENOENT, "without a heap"),
        ROW(context_unmapped_heap, FIRST, HEAP, EINVAL, "not mapped"),
        ROW(context_no_tiles, FIRST, HEAP, EINVAL, "of 0 tiles"),
        ROW(context_too_wide, FIRST, HEAP, EINVAL, "of 36 tiles"),
        ROW(contexts_too_many, FIRST, HEAP, ENOSPC, "more than 16"),
        ROW(context_destroyed_twice, FIRST, READY, EINVAL, "names nothing"),
        ROW(config_twice, FIRST, READY, EINVAL, "second configuration"),
        ROW(config_nothing, FIRST, READY, EINVAL, "0 compute units"),
        ROW(config_beyond, FIRST, READY, EINVAL, "30 compute units"),
        ROW(config_shared_image, FIRST, READY, EINVAL, "no device buffer"),
        ROW(config_bad_image, FIRST, READY, EINVAL, "does not know"),
        ROW(config_unsynced_image, SHADOW, READY, EINVAL, "was it synced"),
        ROW(config_large, FIRST, READY, E2BIG, "8192 bytes"),
        ROW(config_debug, FIRST, READY, EOPNOTSUPP, "debug buffer"),
        ROW(execute_two, FIRST, READY, EINVAL, "2 commands"),
        ROW(execute_kind, FIRST, READY, EINVAL, "kind 1"),
        ROW(execute_no_command, FIRST, READY, EINVAL, "no command buffer"),
        ROW(execute_stale_argument, FIRST, READY, ENOENT, "names nothing"),
        ROW(execute_bad_list, FIRST, READY, EFAULT, "cannot be read"),
        ROW(execute_no_context, FIRST, READY, EINVAL, "context 200"),
        ROW(execute_not_configured, FIRST, READY, EINVAL, "not configured"),
        ROW(command_op, FIRST, READY, STATE(ERT_ABORT), "operation 9"),
        ROW(command_short, FIRST, READY, STATE(ERT_ABORT), "of 1 words"),
        ROW(command_few, FIRST, READY, STATE(ERT_ERROR), "less than 3 buffers"),
        ROW(command_no_cu, FIRST, READY, STATE(ERT_ABORT), "compute unit 1 of 1"),
        ROW(command_opcode, FIRST, READY, STATE(ERT_ERROR), "operation 4"),
        ROW(instructions_unaligned, FIRST, READY, STATE(ERT_ERROR), "not aligned"),
        ROW(instructions_shared, FIRST, READY, STATE(ERT_ERROR), "outside of the heap"),
        ROW(instructions_beyond, FIRST, READY, STATE(ERT_ERROR), "beyond a buffer"),
        ROW(instructions_wild, FIRST, READY, STATE(ERT_ERROR), "where no buffer is"),
        ROW(instructions_garbage, FIRST, READY, STATE(ERT_ERROR), "no program"),
        ROW(instructions_unsynced, SHADOW, READY, STATE(ERT_ERROR), "not synced"),
        ROW(argument_wild, FIRST, READY, STATE(ERT_ERROR), "where no buffer is"),
        ROW(argument_unaligned, FIRST, READY, STATE(ERT_ERROR), "argument 0 at"),
        ROW(argument_beyond, FIRST, READY, STATE(ERT_ERROR), "beyond a buffer"),
        ROW(argument_closed, FIRST, READY, STATE(ERT_ERROR), "where no buffer is"),
        ROW(output_overlaps, FIRST, READY, STATE(ERT_ERROR), "overlaps argument 1"),
        ROW(data_unsynced, SHADOW, READY, STATE(ERT_ERROR), "not synced"),
        ROW(chain_long, FIRST, READY, STATE(ERT_ABORT), "a chain of 50"),
        ROW(chain_no_command, FIRST, READY, STATE(ERT_ABORT), "a chain's command"),
        ROW(wait_not_submitted, FIRST, READY, EINVAL, "not submitted"),
        ROW(wait_too_long, FIRST, READY, ETIME, ""),
        ROW(wait_flags, FIRST, READY, EINVAL, "flags 0x40"),
        ROW(wait_stale, FIRST, READY, ENOENT, "sync object 99"),
        ROW(wait_bad_list, FIRST, READY, EFAULT, ""),
        ROW(syncobj_destroyed_twice, FIRST, READY, EINVAL, "names nothing"),
        ROW(syncobj_from_file, FIRST, READY, EINVAL, "from what is none"),
        ROW(ask_unknown, FIRST, READY, EOPNOTSUPP, "about 99"),
        ROW(ask_nowhere, FIRST, READY, EFAULT, ""),
        ROW(ask_array_early, FIRST, READY, EINVAL, "GET_ARRAY"),
        ROW(ask_telemetry_small, LATE, READY, EINVAL, "telemetry"),
        ROW(power_unknown, FIRST, READY, EINVAL, "state 5"),
        ROW(power_padding, FIRST, READY, EINVAL, "padding"),
        ROW(wait_command_out_of_tree, LATE, READY, EINVAL, "does not have"),
};

static void wrong_uses(void **state)
{
        unsigned n_failed = 0;
        char why[512];

        (void)state;
        for (size_t i = 0; i < TDM_ARRAY_SIZE(uses); i++) {
                bool is_power = uses[i].use == power_unknown || uses[i].use == power_padding;
                bool refused_first = is_power && geteuid() != 0; /* users may not, whatever the state */
                int expected = refused_first ? EACCES : uses[i].result, result;
                const char *reason = refused_first ? "by a user" : uses[i].why;
                struct npu n;

                use_server(uses[i].server);
                if (uses[i].stage == OPENED)
                        open_npu(&n);
                else if (uses[i].stage == HEAP)
                        open_heap(&n);
                else
                        open_ready(&n);
                result = uses[i].use(&n);
                ask(uses[i].server, "why", why, sizeof(why));
                if (result != expected || !strstr(why, reason)) {
                        print_error("%s: %d instead of %d, \"%s\"\n", uses[i].name, result, expected, why);
                        n_failed++;
                }
                close_npu(&n);
        }
        assert_int_equal(n_failed, 0);
        print_message("%zu wrong uses were refused\n", TDM_ARRAY_SIZE(uses));
}

#endif
