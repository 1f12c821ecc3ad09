/* How much a user's pages take on disk, and which leave when that is too much: those that were used longest ago, of one
 * text the last ones first. Of the disk a twentieth is left free. */
#include "daemon/cache/page-store-private.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include "common/log.h"

#define MOST_BYTES (UINT64_C(8) << 30)
#define DISK_SHARE 10u /* of the file system, a user's pages take this part at most, unless more is asked for */
#define DISK_FREE 20u  /* this part of it is left free */
#define MANY_FILES (1u << 20)
#define STALE_S 3600 /* a file that is being written is not that old */

/* A file of a user's folder. */
struct page_file {
        char path[TDM_PAGE_PATH]; /* SET/NAME */
        uint64_t bytes, used_ns;
        uint32_t index;
};

struct page_files {
        struct page_file *files;
        size_t n, room;
        uint64_t bytes;
};

static DIR *open_dir(int at, const char *name)
{
        int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        DIR *dir = fd < 0 ? NULL : fdopendir(fd);

        if (!dir)
                closep(&fd);
        return dir;
}

static void closedirp(DIR **dir)
{
        if (*dir)
                closedir(*dir);
}

static int add_page_file(struct page_files *all, const char *set, const char *name, const struct stat *st)
{
        struct page_file *f;

        all->bytes += (uint64_t)st->st_size;
        if (all->n == all->room) {
                size_t room = TDM_MAX(2 * all->room, (size_t)256);
                struct page_file *bigger = room > MANY_FILES ? NULL : realloc(all->files, room * sizeof(*bigger));

                if (!bigger)
                        return -ENOMEM;
                all->files = bigger;
                all->room = room;
        }
        f = &all->files[all->n];
        if ((size_t)snprintf(f->path, sizeof(f->path), "%s/%s", set, name) >= sizeof(f->path))
                return 0;
        f->bytes = (uint64_t)st->st_size;
        f->used_ns = (uint64_t)st->st_mtim.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)st->st_mtim.tv_nsec;
        f->index = (uint32_t)strtoul(name, NULL, 16);
        all->n++;
        return 0;
}

/* Files that cannot be looked at count as nothing. */
static int list_set(struct page_files *all, DIR *user, const char *set)
{
        _cleanup_(closedirp) DIR *dir = open_dir(dirfd(user), set);
        struct dirent *e;
        struct stat st;
        int r = 0;

        while (dir && r == 0 && (e = readdir(dir)))
                if (e->d_name[0] != '.' && fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
                    S_ISREG(st.st_mode))
                        r = add_page_file(all, set, e->d_name, &st);
        return r;
}

static int list_user(const struct tdm_page_store *store, const char *name, struct page_files *ret)
{
        _cleanup_(closedirp) DIR *user = open_dir(store->pages, name);
        struct dirent *e;
        int r = 0;

        while (user && r == 0 && (e = readdir(user)))
                if (e->d_name[0] != '.')
                        r = list_set(ret, user, e->d_name);
        return r;
}

static int page_file_compare(const void *pa, const void *pb)
{
        const struct page_file *a = pa, *b = pb;

        if (a->used_ns != b->used_ns)
                return a->used_ns < b->used_ns ? -1 : 1;
        return a->index > b->index ? -1 : a->index < b->index;
}

/* Removes the files that were used longest ago, until the others take no more than `most`. */
static uint64_t remove_oldest(const struct tdm_page_store *store, const char *name, struct page_files *all,
                              uint64_t most)
{
        _cleanup_(closedirp) DIR *user = open_dir(store->pages, name);
        uint64_t bytes = all->bytes;

        qsort(all->files, all->n, sizeof(*all->files), page_file_compare);
        for (size_t i = 0; user && i < all->n && bytes > most; i++) {
                char *slash = strchr(all->files[i].path, '/');

                if (unlinkat(dirfd(user), all->files[i].path, 0) < 0 && errno != ENOENT)
                        continue;
                bytes -= TDM_MIN(bytes, all->files[i].bytes);
                *slash = 0;
                (void)unlinkat(dirfd(user), all->files[i].path, AT_REMOVEDIR); /* where it is empty */
                *slash = '/';
        }
        return bytes;
}

/* ---- what others have left ---- */

/* A folder of another version: users, sets, pages. */
static void remove_tree(int at, const char *name, int depth)
{
        DIR *dir = depth > 0 ? open_dir(at, name) : NULL;
        struct dirent *e;

        while (dir && (e = readdir(dir)))
                if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 &&
                    unlinkat(dirfd(dir), e->d_name, 0) < 0)
                        remove_tree(dirfd(dir), e->d_name, depth - 1);
        closedirp(&dir);
        (void)unlinkat(at, name, AT_REMOVEDIR);
}

static void sweep(struct tdm_page_store *store)
{
        _cleanup_(closedirp) DIR *root = open_dir(store->root, "."), *pages = open_dir(store->pages, ".");
        time_t now = time(NULL);
        struct dirent *e;
        struct stat st;

        store->swept = true;
        while (root && (e = readdir(root))) {
                size_t n = strlen(e->d_name);

                if (e->d_name[0] != 'v' || n < 2 || strspn(e->d_name + 1, "0123456789") != n - 1 ||
                    strcmp(e->d_name, TDM_PAGE_VERSION) == 0)
                        continue;
                tdm_log_info("%s/%s is of another version of Tandem, which this one cannot read: it is removed",
                             store->path, e->d_name);
                remove_tree(store->root, e->d_name, 4);
        }
        while (pages && (e = readdir(pages)))
                if (strncmp(e->d_name, TDM_PAGE_NEW, strlen(TDM_PAGE_NEW)) == 0 &&
                    fstatat(store->pages, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_mtime < now - STALE_S)
                        (void)unlinkat(store->pages, e->d_name, 0);
}

/* ---- shares ---- */

static struct page_share *share_of(struct tdm_page_store *store, uid_t uid)
{
        for (unsigned i = 0; i < TDM_PAGE_SHARES; i++)
                if (store->shares[i].known && store->shares[i].uid == uid)
                        return &store->shares[i];
        /* Whose place it takes is counted again. */
        store->shares[uid % TDM_PAGE_SHARES] = (struct page_share){ .uid = uid };
        return &store->shares[uid % TDM_PAGE_SHARES];
}

/* What a user with so many bytes may have in all. */
static uint64_t most_bytes(const struct tdm_page_store *store, uint64_t bytes)
{
        uint64_t most = store->max_bytes, total, left;
        struct statvfs fs;

        if (fstatvfs(store->pages, &fs) < 0)
                return most ? most : MOST_BYTES;
        total = (uint64_t)fs.f_blocks * fs.f_frsize;
        left = (uint64_t)fs.f_bavail * fs.f_frsize;
        if (most == 0)
                most = TDM_MIN(total / DISK_SHARE, MOST_BYTES);
        return TDM_MIN(most, bytes + left - TDM_MIN(left, total / DISK_FREE));
}

int tdm_page_store_make_room(struct tdm_page_store *store, uid_t uid, uint64_t bytes)
{
        struct page_share *share = share_of(store, uid);
        struct page_files all = { 0 };
        uint64_t most;
        char name[32];

        if (!store->swept)
                sweep(store);
        most = most_bytes(store, share->bytes);
        if (share->known && share->bytes + bytes <= most)
                return 0;
        /* Another daemon may write there too, and people may remove files: what is there counts. */
        snprintf(name, sizeof(name), "u%u", (unsigned)uid);
        if (list_user(store, name, &all) < 0) {
                free(all.files);
                return -ENOSPC;
        }
        most = most_bytes(store, all.bytes);
        if (all.bytes + bytes > most)
                all.bytes = remove_oldest(store, name, &all, most - TDM_MIN(most, most / 10 + bytes));
        free(all.files);
        *share = (struct page_share){ .uid = uid, .known = true, .bytes = all.bytes };
        return all.bytes + bytes <= most ? 0 : -ENOSPC;
}

void tdm_page_store_count(struct tdm_page_store *store, uid_t uid, uint64_t bytes)
{
        share_of(store, uid)->bytes += bytes;
}
