/* Pages on disk: what comes back, whose it is, what damage of every kind does, and how much they may take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "common/log.h"
#include "daemon/cache/page-store.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

#define N_PAGES 6u
#define N_DAMAGED 3000u
#define HEADER_BYTES 272u

static char folder[] = "/tmp/test-page-store-XXXXXX", path[64];
static struct tdm_kv_geometry kv;
static struct tdm_page_store *store;
static struct tdm_page_set set;
static struct tdm_page_key keys[N_PAGES];
static uint32_t ids[N_PAGES * TDM_KV_PAGE_TOKENS];
static uint8_t *pages[TDM_KV_GROUPS][N_PAGES], *got[TDM_KV_GROUPS];
static uint64_t seed = 7;

static uint32_t draw(uint32_t n)
{
        seed = seed * UINT64_C(6364136223846793005) + 1;
        return (uint32_t)((seed >> 33) % n);
}

static struct tdm_page_place place(uint32_t i)
{
        return (struct tdm_page_place){ &set, ids, keys, i };
}

static void store_open(uint64_t max_bytes)
{
        struct tdm_error err;

        assert_int_equal(tdm_page_store_open(&store, path, max_bytes, &err), 0);
}

static void choose_set(uid_t uid, const char *model, const char *numerics)
{
        struct tdm_page_key digest = { { 0 } };

        memcpy(digest.bytes, model, strlen(model));
        tdm_page_store_set(store, &set, uid, &digest, numerics, strlen(numerics) + 1, &kv);
        tdm_page_store_keys(store, &set, ids, N_PAGES, keys);
}

static int write_page(uint32_t i)
{
        struct tdm_page_place p = place(i);

        return tdm_page_store_write(store, &p, pages[TDM_KV_FULL][i], i % 2 ? pages[TDM_KV_WINDOW][i] : NULL, 1000 + i);
}

static int read_page(uint32_t i, bool *ret_window, uint64_t *ret_row_ns)
{
        struct tdm_page_place p = place(i);

        return tdm_page_store_read(store, &p, got[TDM_KV_FULL], got[TDM_KV_WINDOW], ret_window, ret_row_ns);
}

static void comes_back(uint32_t i)
{
        uint64_t row_ns;
        bool window;

        assert_int_equal(read_page(i, &window, &row_ns), 0);
        assert_int_equal(window, i % 2);
        assert_int_equal(row_ns, 1000 + i);
        assert_memory_equal(got[TDM_KV_FULL], pages[TDM_KV_FULL][i], kv.page_bytes[TDM_KV_FULL]);
        if (window)
                assert_memory_equal(got[TDM_KV_WINDOW], pages[TDM_KV_WINDOW][i], kv.page_bytes[TDM_KV_WINDOW]);
}

static int reads(uint32_t i)
{
        uint64_t row_ns;
        bool window;

        return read_page(i, &window, &row_ns);
}

/* The file of page i of the set. */
static void file_of(uint32_t i, char *ret, size_t size)
{
        char hex[2][33];

        for (size_t k = 0; k < 16; k++) {
                snprintf(hex[0] + 2 * k, 3, "%02x", set.key.bytes[k]);
                snprintf(hex[1] + 2 * k, 3, "%02x", keys[i].bytes[k]);
        }
        snprintf(ret, size, "%s/v1/u%u/%s/%06x-%s.page", path, (unsigned)set.uid, hex[0], i, hex[1]);
}

static int set_up(void **state)
{
        struct tdm_hparams hp = {
                .n_layers = 3, .d_model = 64, .n_heads = 2, .n_kv_heads = 1, .head_dim = 32, .n_ctx = 4096, .window = 64
        };

        assert_non_null(mkdtemp(folder));
        snprintf(path, sizeof(path), "%s/prefixes", folder);
        tdm_hparams_all_layers(&hp);
        hp.layers[2].window = 0;
        assert_int_equal(tdm_kv_geometry_init(&kv, &hp, TDM_KV_F16, 4, 4, 0), 0);
        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                got[g] = malloc(kv.page_bytes[g]);
                for (uint32_t i = 0; i < N_PAGES; i++) {
                        pages[g][i] = malloc(kv.page_bytes[g]);
                        for (uint64_t k = 0; k < kv.page_bytes[g]; k++)
                                pages[g][i][k] = (uint8_t)draw(256);
                }
        }
        for (uint32_t i = 0; i < N_PAGES * TDM_KV_PAGE_TOKENS; i++)
                ids[i] = draw(32000);
        store_open(UINT64_C(64) << 20);
        choose_set(1000, "model", "host-2:default:f16");
        return 0;
}

static int remove_one(const char *name, const struct stat *st, int kind, struct FTW *ftw)
{
        return remove(name);
}

static int tear_down(void **state)
{
        tdm_page_store_closep(&store);
        (void)nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
        for (int g = 0; g < TDM_KV_GROUPS; g++) {
                free(got[g]);
                for (uint32_t i = 0; i < N_PAGES; i++)
                        free(pages[g][i]);
        }
        return 0;
}

static void test_there_and_back(void **state)
{
        struct tdm_page_place first;

        for (uint32_t i = 0; i < N_PAGES; i++) {
                assert_int_equal(reads(i), -ENOENT);
                assert_int_equal(write_page(i), 0);
                assert_int_equal(write_page(i), -EEXIST);
        }
        tdm_page_store_closep(&store);
        store_open(UINT64_C(64) << 20);
        choose_set(1000, "model", "host-2:default:f16");
        for (uint32_t i = 0; i < N_PAGES; i++)
                comes_back(i);
        first = place(0);
        assert_true(tdm_page_store_has(store, &first));
        assert_int_equal(tdm_page_store_n_refused(store), 0);
}

/* Another user, model, arithmetic, or text before a page: nothing is found. */
static void test_whose(void **state)
{
        uint32_t kept;

        choose_set(1001, "model", "host-2:default:f16");
        assert_int_equal(reads(0), -ENOENT);
        choose_set(1000, "model2", "host-2:default:f16");
        assert_int_equal(reads(0), -ENOENT);
        choose_set(1000, "model", "host-3:default:f16");
        assert_int_equal(reads(0), -ENOENT);
        kv.type = TDM_KV_Q8_0;
        choose_set(1000, "model", "host-2:default:f16");
        assert_int_equal(reads(0), -ENOENT);
        kv.type = TDM_KV_F16;
        kept = ids[3]++;
        choose_set(1000, "model", "host-2:default:f16");
        for (uint32_t i = 0; i < N_PAGES; i++)
                assert_int_equal(reads(i), -ENOENT);
        ids[3] = kept;
        choose_set(1000, "model", "host-2:default:f16");
        comes_back(0);
}

static void flip(const char *file, uint64_t size)
{
        int fd = open(file, O_RDWR | O_CLOEXEC);
        off_t at = (off_t)draw((uint32_t)(draw(3) ? size : HEADER_BYTES));
        uint8_t byte;

        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= (uint8_t)(1u << draw(8));
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
        close(fd);
}

/* One of many ways in which a file is not what was written. */
static void damage(uint32_t i)
{
        char file[256], other[256];
        struct stat st;

        file_of(i, file, sizeof(file));
        file_of((i + 1 + draw(N_PAGES - 1)) % N_PAGES, other, sizeof(other));
        assert_int_equal(stat(file, &st), 0);
        switch (draw(8)) {
        default:
                flip(file, (uint64_t)st.st_size);
                break;
        case 1:
                assert_int_equal(truncate(file, draw((uint32_t)st.st_size)), 0);
                break;
        case 2:
                assert_int_equal(truncate(file, st.st_size + 1 + draw(9000)), 0);
                break;
        case 3: /* another page of the same text */
                assert_int_equal(unlink(file), 0);
                assert_int_equal(link(other, file), 0);
                break;
        case 4: /* a block of zeros, as a power cut leaves them */
                assert_int_equal(truncate(file, draw((uint32_t)st.st_size)), 0);
                assert_int_equal(truncate(file, st.st_size), 0);
                break;
        case 5:
                assert_int_equal(unlink(file), 0);
                assert_int_equal(draw(2) ? symlink("/etc/passwd", file) : mkfifo(file, 0600), 0);
                break;
        case 6:
                assert_int_equal(unlink(file), 0);
                assert_int_equal(mkdir(file, 0700), 0);
                break;
        }
}

static void test_damage(void **state)
{
        uint64_t n = tdm_page_store_n_refused(store);

        for (uint32_t k = 0; k < N_DAMAGED; k++) {
                uint32_t i = draw(N_PAGES);
                char file[256];
                struct stat st;
                int r;

                damage(i);
                r = reads(i);
                assert_int_equal(r, -EBADMSG);
                file_of(i, file, sizeof(file));
                assert_int_equal(lstat(file, &st), -1); /* it is gone, and can be written anew */
                assert_int_equal(write_page(i), 0);
                comes_back(i);
        }
        assert_int_equal(tdm_page_store_n_refused(store) - n, N_DAMAGED);
}

/* A file of another user's or model's folder, moved here whole. */
static void test_moved_sets(void **state)
{
        struct tdm_page_set mine = set;
        char from[256], to[256];

        choose_set(1001, "model", "host-2:default:f16");
        assert_int_equal(write_page(0), 0);
        file_of(0, from, sizeof(from));
        choose_set(1000, "model", "host-2:default:f16");
        assert_memory_equal(&mine.key, &set.key, sizeof(set.key));
        file_of(0, to, sizeof(to));
        assert_int_equal(rename(from, to), 0);
        assert_int_equal(reads(0), -EBADMSG);
        assert_int_equal(write_page(0), 0);
}

static uint64_t bytes_of_user(void)
{
        char name[256];
        uint64_t bytes = 0;
        struct dirent *e;
        struct stat st;
        DIR *dir;

        file_of(0, name, sizeof(name));
        *strrchr(name, '/') = 0;
        dir = opendir(name);
        while (dir && (e = readdir(dir)))
                if (fstatat(dirfd(dir), e->d_name, &st, 0) == 0 && S_ISREG(st.st_mode))
                        bytes += (uint64_t)st.st_size;
        if (dir)
                closedir(dir);
        return bytes;
}

/* What is full keeps what was used last. */
static void test_share(void **state)
{
        const uint64_t most = 12 * (HEADER_BYTES + kv.page_bytes[TDM_KV_FULL] + kv.page_bytes[TDM_KV_WINDOW]);

        tdm_page_store_closep(&store);
        store_open(most);
        choose_set(1000, "model", "host-2:default:f16");
        for (uint32_t round = 0; round < 20; round++) {
                ids[0] = round;
                choose_set(1000, "model", "host-2:default:f16");
                for (uint32_t i = 0; i < N_PAGES; i++)
                        assert_int_equal(write_page(i), 0);
                assert_true(bytes_of_user() <= most);
                for (uint32_t i = 0; i < N_PAGES; i++)
                        comes_back(i);
        }
        ids[0] = 0;
        choose_set(1000, "model", "host-2:default:f16");
        assert_int_equal(reads(N_PAGES - 1), -ENOENT);
        tdm_page_store_closep(&store);
        store_open(1000); /* less than a page */
        ids[0] = 77;
        choose_set(1000, "model", "host-2:default:f16");
        assert_int_equal(write_page(0), -ENOSPC);
}

/* What another version has left is removed; a folder that others may look into is not used. */
static void test_folders(void **state)
{
        struct tdm_error err;
        char name[128];

        snprintf(name, sizeof(name), "%s/v999", path);
        assert_int_equal(mkdir(name, 0700), 0);
        strcat(name, "/u1");
        assert_int_equal(mkdir(name, 0700), 0);
        tdm_page_store_closep(&store);
        store_open(UINT64_C(64) << 20);
        choose_set(1000, "model", "host-2:default:f16");
        assert_int_equal(write_page(0), 0);
        assert_int_equal(access(name, F_OK), -1);
        tdm_page_store_closep(&store);

        assert_int_equal(chmod(path, 0755), 0);
        assert_int_equal(tdm_page_store_open(&store, path, 0, &err), -EPERM);
        assert_non_null(strstr(err.message, "0700"));
        assert_int_equal(chmod(path, 0700), 0);

        /* Without its secret nothing is found, and all goes on. */
        snprintf(name, sizeof(name), "%s/key", path);
        assert_int_equal(truncate(name, 3), 0);
        store_open(UINT64_C(64) << 20);
        choose_set(1000, "model", "host-2:default:f16");
        assert_int_equal(reads(0), -ENOENT);
        assert_int_equal(write_page(0), 0);
        comes_back(0);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_there_and_back), cmocka_unit_test(test_whose), cmocka_unit_test(test_damage),
                cmocka_unit_test(test_moved_sets),     cmocka_unit_test(test_share), cmocka_unit_test(test_folders),
        };

        tdm_log_set_level(TDM_LOG_ERROR); /* each damaged page is warned of */
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
