/* Reading and writing pages. page-share.c bounds what they take. */
#include "daemon/cache/page-store-private.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include "common/log.h"

#define FORMAT 1u
#define MAGIC "TDMPAGE"

/* A file: this, the full page, the window page where it has one. Numbers as the machine has them. */
struct page_header {
        char magic[8];
        uint32_t format, header_bytes;
        struct tdm_page_key set, parent, key;
        uint32_t index, reserved;
        uint64_t page_bytes[TDM_KV_GROUPS]; /* 0: none */
        uint64_t row_ns;
        uint32_t tokens[TDM_KV_PAGE_TOKENS];
        struct tdm_page_key sums[TDM_KV_GROUPS];
        struct tdm_page_key sum; /* of all before it */
};

static const struct tdm_page_key no_key;

static bool keys_equal(const struct tdm_page_key *a, const struct tdm_page_key *b)
{
        return memcmp(a, b, sizeof(*a)) == 0;
}

/* ---- the store ---- */

/* Another daemon of the same user may make it at the same time: the first one's counts. */
static int make_secret(int root)
{
        uint8_t secret[TDM_SIPHASH_KEY_BYTES];
        _cleanup_(closep) int fd = -1;
        char name[48];
        int r = 0;

        if (getrandom(secret, sizeof(secret), 0) != sizeof(secret))
                return -errno;
        snprintf(name, sizeof(name), TDM_PAGE_NEW "key-%u", (unsigned)getpid());
        (void)unlinkat(root, name, 0);
        fd = openat(root, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;
        if (write(fd, secret, sizeof(secret)) != sizeof(secret))
                r = -ENOSPC;
        if (r == 0 && linkat(root, name, root, "key", 0) < 0 && errno != EEXIST)
                r = -errno;
        (void)unlinkat(root, name, 0);
        return r;
}

/* -ENOENT: there is none. -EBADMSG: it is none. */
static int read_secret(int root, uint8_t *ret)
{
        _cleanup_(closep) int fd = openat(root, "key", O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        struct stat st;

        if (fd < 0)
                return errno == ELOOP ? -EBADMSG : -errno;
        if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size != TDM_SIPHASH_KEY_BYTES)
                return -EBADMSG;
        return pread(fd, ret, TDM_SIPHASH_KEY_BYTES, 0) == TDM_SIPHASH_KEY_BYTES ? 0 : -EBADMSG;
}

static int take_secret(struct tdm_page_store *store)
{
        int r = read_secret(store->root, store->secret);

        if (r == -EBADMSG) {
                tdm_log_warning("%s/key is damaged: what is kept there is of no use any more", store->path);
                if (unlinkat(store->root, "key", 0) < 0)
                        return -errno;
                r = -ENOENT;
        }
        if (r == -ENOENT) {
                r = make_secret(store->root);
                if (r == 0)
                        r = read_secret(store->root, store->secret);
        }
        return r;
}

static int open_folder(struct tdm_page_store *store)
{
        struct stat st;

        if (mkdir(store->path, 0700) < 0 && errno != EEXIST)
                return -errno;
        store->root = open(store->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (store->root < 0 || fstat(store->root, &st) < 0)
                return -errno;
        if (st.st_uid != geteuid() || st.st_mode & 077)
                return -EPERM;
        return 0;
}

int tdm_page_store_open(struct tdm_page_store **ret, const char *path, uint64_t max_bytes, struct tdm_error *err)
{
        _cleanup_(tdm_page_store_closep) struct tdm_page_store *store = calloc(1, sizeof(*store));
        int r;

        if (!store)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        store->root = store->pages = -1;
        store->max_bytes = max_bytes;
        store->path = strdup(path);
        if (!store->path)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        r = open_folder(store);
        if (r == 0)
                r = take_secret(store);
        if (r == 0 && mkdirat(store->root, TDM_PAGE_VERSION, 0700) < 0 && errno != EEXIST)
                r = -errno;
        if (r == 0) {
                store->pages = openat(store->root, TDM_PAGE_VERSION, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
                r = store->pages < 0 ? -errno : 0;
        }
        if (r == -EPERM)
                return tdm_error_set(err, r, "%s is another user's, or others may look into it (it needs mode 0700)",
                                     path);
        if (r < 0)
                return tdm_error_set(err, r, "%s: %s", path, strerror(-r));
        *ret = steal_ptr(&store);
        return 0;
}

void tdm_page_store_close(struct tdm_page_store *store)
{
        if (!store)
                return;
        closep(&store->pages);
        closep(&store->root);
        free(store->path);
        free(store);
}

void tdm_page_store_closep(struct tdm_page_store **store)
{
        tdm_page_store_close(*store);
        *store = NULL;
}

/* ---- keys ---- */

static void add_number(struct tdm_siphash *hash, uint64_t n)
{
        tdm_siphash_add(hash, &n, sizeof(n));
}

void tdm_page_store_set(const struct tdm_page_store *store, struct tdm_page_set *ret, uid_t uid,
                        const struct tdm_page_key *model, const void *numerics, size_t numerics_size,
                        const struct tdm_kv_geometry *kv)
{
        struct tdm_siphash hash;

        tdm_siphash_init(&hash, store->secret);
        add_number(&hash, FORMAT);
        add_number(&hash, uid);
        tdm_siphash_add(&hash, model, sizeof(*model));
        add_number(&hash, numerics_size);
        tdm_siphash_add(&hash, numerics, numerics_size);
        add_number(&hash, kv->type);
        for (int g = 0; g < TDM_KV_GROUPS; g++)
                add_number(&hash, kv->page_bytes[g]);
        tdm_siphash_add(&hash, kv->layers, sizeof(kv->layers)); /* no padding */
        *ret = (struct tdm_page_set){ .uid = uid };
        memcpy(ret->page_bytes, kv->page_bytes, sizeof(ret->page_bytes));
        tdm_siphash_end(&hash, ret->key.bytes);
}

void tdm_page_store_keys(const struct tdm_page_store *store, const struct tdm_page_set *set, const uint32_t *ids,
                         uint32_t n, struct tdm_page_key *ret)
{
        for (uint32_t i = 0; i < n; i++) {
                struct tdm_siphash hash;

                tdm_siphash_init(&hash, store->secret);
                tdm_siphash_add(&hash, &set->key, sizeof(set->key));
                tdm_siphash_add(&hash, i == 0 ? &no_key : &ret[i - 1], sizeof(no_key));
                tdm_siphash_add(&hash, ids + (size_t)i * TDM_KV_PAGE_TOKENS, TDM_KV_PAGE_TOKENS * sizeof(*ids));
                tdm_siphash_end(&hash, ret[i].bytes);
        }
}

static void sum_of(const struct tdm_page_store *store, const void *data, size_t size, struct tdm_page_key *ret)
{
        struct tdm_siphash hash;

        tdm_siphash_init(&hash, store->secret);
        tdm_siphash_add(&hash, data, size);
        tdm_siphash_end(&hash, ret->bytes);
}

static void print_key(char *to, const struct tdm_page_key *key)
{
        for (size_t i = 0; i < sizeof(key->bytes); i++)
                snprintf(to + 2 * i, 3, "%02x", key->bytes[i]);
}

/* uUID/SET/INDEX-KEY.page */
static void print_place(char ret[TDM_PAGE_PATH], const struct tdm_page_place *place)
{
        char set[33], key[33];

        print_key(set, &place->set->key);
        print_key(key, &place->keys[place->index]);
        snprintf(ret, TDM_PAGE_PATH, "u%u/%s/%06x-%s.page", (unsigned)place->set->uid, set, place->index & 0xffffffu,
                 key);
}

/* ---- reading ---- */

bool tdm_page_store_has(const struct tdm_page_store *store, const struct tdm_page_place *place)
{
        char path[TDM_PAGE_PATH];

        print_place(path, place);
        return faccessat(store->pages, path, R_OK, 0) == 0;
}

static uint64_t file_bytes(const struct page_header *h)
{
        return sizeof(*h) + h->page_bytes[TDM_KV_FULL] + h->page_bytes[TDM_KV_WINDOW];
}

static struct page_header header_of(const struct tdm_page_place *place)
{
        struct page_header h = { .magic = MAGIC,
                                 .format = FORMAT,
                                 .header_bytes = sizeof(h),
                                 .set = place->set->key,
                                 .parent = place->index == 0 ? no_key : place->keys[place->index - 1],
                                 .key = place->keys[place->index],
                                 .index = place->index };

        memcpy(h.tokens, place->ids + (size_t)place->index * TDM_KV_PAGE_TOKENS, sizeof(h.tokens));
        return h;
}

/* The header is that of this page, and nothing in it has changed. */
static bool header_is_of(const struct tdm_page_store *store, const struct tdm_page_place *place,
                         const struct page_header *h, uint64_t size)
{
        struct page_header want = header_of(place);
        struct tdm_page_key sum;

        sum_of(store, h, offsetof(struct page_header, sum), &sum);
        return memcmp(h, &want, offsetof(struct page_header, page_bytes)) == 0 &&
               memcmp(h->tokens, want.tokens, sizeof(want.tokens)) == 0 &&
               h->page_bytes[TDM_KV_FULL] == place->set->page_bytes[TDM_KV_FULL] &&
               (h->page_bytes[TDM_KV_WINDOW] == 0 ||
                h->page_bytes[TDM_KV_WINDOW] == place->set->page_bytes[TDM_KV_WINDOW]) &&
               size == file_bytes(h) && keys_equal(&sum, &h->sum);
}

/* -EBADMSG: the file ends before. */
static int read_all(int fd, void *to, uint64_t size, uint64_t offset)
{
        uint64_t done = 0;

        while (done < size) {
                ssize_t n = pread(fd, (char *)to + done, size - done, (off_t)(offset + done));

                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -errno;
                if (n == 0)
                        return -EBADMSG;
                done += (uint64_t)n;
        }
        return 0;
}

static int read_group(const struct tdm_page_store *store, int fd, const struct page_header *h, int group,
                      uint64_t offset, void *to)
{
        struct tdm_page_key sum;
        int r = read_all(fd, to, h->page_bytes[group], offset);

        if (r < 0)
                return r;
        sum_of(store, to, h->page_bytes[group], &sum);
        return keys_equal(&sum, &h->sums[group]) ? 0 : -EBADMSG;
}

static int read_page(const struct tdm_page_store *store, const struct tdm_page_place *place, int fd, void *full,
                     void *window, bool *ret_window, uint64_t *ret_row_ns)
{
        struct page_header h;
        struct stat st;
        int r;

        if (fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return -EBADMSG;
        r = read_all(fd, &h, sizeof(h), 0);
        if (r < 0)
                return r;
        if (!header_is_of(store, place, &h, (uint64_t)st.st_size))
                return -EBADMSG;
        r = read_group(store, fd, &h, TDM_KV_FULL, sizeof(h), full);
        if (r == 0 && window && h.page_bytes[TDM_KV_WINDOW] > 0)
                r = read_group(store, fd, &h, TDM_KV_WINDOW, sizeof(h) + h.page_bytes[TDM_KV_FULL], window);
        if (r < 0)
                return r;
        *ret_window = window && h.page_bytes[TDM_KV_WINDOW] > 0;
        *ret_row_ns = h.row_ns;
        return 0;
}

int tdm_page_store_read(struct tdm_page_store *store, const struct tdm_page_place *place, void *full, void *window,
                        bool *ret_window, uint64_t *ret_row_ns)
{
        _cleanup_(closep) int fd = -1;
        char path[TDM_PAGE_PATH];
        bool first;
        int r;

        print_place(path, place);
        fd = openat(store->pages, path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno != ELOOP)
                return -errno;
        r = fd < 0 ? -EBADMSG : read_page(store, place, fd, full, window, ret_window, ret_row_ns);
        if (r == 0)
                (void)futimens(fd, NULL); /* it was used now */
        if (r != -EBADMSG)
                return r;
        first = atomic_fetch_add_explicit(&store->n_refused, 1, memory_order_relaxed) == 0;
        /* One that is gone is told of once. Of those that cannot be removed only the first is told. */
        if (unlinkat(store->pages, path, 0) == 0 || unlinkat(store->pages, path, AT_REMOVEDIR) == 0 || first)
                tdm_log_warning("%s/" TDM_PAGE_VERSION "/%s is damaged and not used; its tokens are read anew",
                                store->path, path);
        return r;
}

uint64_t tdm_page_store_n_refused(const struct tdm_page_store *store)
{
        return atomic_load_explicit(&store->n_refused, memory_order_relaxed);
}

/* ---- writing ---- */

static int write_bytes(int fd, const void *from, uint64_t size)
{
        uint64_t done = 0;

        while (done < size) {
                ssize_t n = write(fd, (const char *)from + done, size - done);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return n < 0 ? -errno : -ENOSPC;
                done += (uint64_t)n;
        }
        return 0;
}

/* The folders of a page. */
static int make_folders(const struct tdm_page_store *store, const char *path)
{
        char folder[TDM_PAGE_PATH];

        snprintf(folder, sizeof(folder), "%s", path);
        for (char *p = strchr(folder, '/'); p; p = strchr(p + 1, '/')) {
                *p = 0;
                if (mkdirat(store->pages, folder, 0700) < 0 && errno != EEXIST)
                        return -errno;
                *p = '/';
        }
        return 0;
}

static int write_file(struct tdm_page_store *store, const char *path, const struct page_header *h, const void *full,
                      const void *window)
{
        _cleanup_(closep) int fd = -1;
        char name[48];
        int r = make_folders(store, path);

        if (r < 0)
                return r;
        snprintf(name, sizeof(name), TDM_PAGE_NEW "%u", (unsigned)getpid());
        (void)unlinkat(store->pages, name, 0);
        fd = openat(store->pages, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
                return -errno;
        r = write_bytes(fd, h, sizeof(*h));
        if (r == 0)
                r = write_bytes(fd, full, h->page_bytes[TDM_KV_FULL]);
        if (r == 0 && window)
                r = write_bytes(fd, window, h->page_bytes[TDM_KV_WINDOW]);
        if (r == 0 && renameat(store->pages, name, store->pages, path) < 0)
                r = -errno;
        if (r < 0)
                (void)unlinkat(store->pages, name, 0);
        return r;
}

int tdm_page_store_write(struct tdm_page_store *store, const struct tdm_page_place *place, const void *full,
                         const void *window, uint64_t row_ns)
{
        struct page_header h = header_of(place);
        char path[TDM_PAGE_PATH];
        int r;

        print_place(path, place);
        if (faccessat(store->pages, path, F_OK, 0) == 0)
                return -EEXIST;
        h.row_ns = row_ns;
        h.page_bytes[TDM_KV_FULL] = place->set->page_bytes[TDM_KV_FULL];
        sum_of(store, full, h.page_bytes[TDM_KV_FULL], &h.sums[TDM_KV_FULL]);
        if (window) {
                h.page_bytes[TDM_KV_WINDOW] = place->set->page_bytes[TDM_KV_WINDOW];
                sum_of(store, window, h.page_bytes[TDM_KV_WINDOW], &h.sums[TDM_KV_WINDOW]);
        }
        sum_of(store, &h, offsetof(struct page_header, sum), &h.sum);
        r = tdm_page_store_make_room(store, place->set->uid, file_bytes(&h));
        if (r == 0)
                r = write_file(store, path, &h, full, window);
        if (r == 0)
                tdm_page_store_count(store, place->set->uid, file_bytes(&h));
        return r;
}
