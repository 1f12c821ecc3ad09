/* See follow.h. The walk resolves links itself: openat2() can refuse links, and does not say whose they are. */
#include "client-lib/store/follow.h"

#include <fcntl.h>
#include <limits.h>

#define MAX_LINKS 40u /* as Linux has it */
#define MAX_OWNERS 8u

/* An owner on the way who is not trusted. */
struct follow_owner {
        uid_t uid;
        bool shut_out; /* a folder behind it does not let this user in */
};

struct follow {
        const char *path; /* for messages */
        struct tdm_error *err;
        uid_t root_uid; /* the owner of "/" */
        struct follow_owner owners[MAX_OWNERS];
        size_t n_owners;
        unsigned n_links;
        int fd;     /* the folder that the walk has come to */
        char *rest; /* of the path; owned */
};

static int cannot_open(const struct follow *f, int error)
{
        return tdm_error_set(f->err, -error, "cannot open %s: %s", f->path, strerror(error));
}

static int note_owner(struct follow *f, uid_t uid)
{
        if (uid == 0 || uid == geteuid() || uid == f->root_uid)
                return 0;
        for (size_t i = 0; i < f->n_owners; i++)
                if (f->owners[i].uid == uid)
                        return 0;
        if (f->n_owners == MAX_OWNERS)
                return tdm_error_set(f->err, TDM_E_DENIED, "the way to %s leads through folders of more than %u users",
                                     f->path, MAX_OWNERS);
        f->owners[f->n_owners++] = (struct follow_owner){ .uid = uid };
        return 0;
}

/* A folder that the walk enters. Its owner is noted behind the check: what others may do in it is its own matter. */
static int enter_folder(struct follow *f, int *fd, const struct stat *st)
{
        for (size_t i = 0; i < f->n_owners; i++)
                if (!(st->st_mode & (st->st_uid == f->owners[i].uid ? S_IXUSR : S_IXOTH)))
                        f->owners[i].shut_out = true;
        closep(&f->fd);
        f->fd = steal_fd(fd);
        return note_owner(f, st->st_uid);
}

/* Puts what a link says in front of the rest of the path. */
static int take_link(struct follow *f, int link_fd, const struct stat *st)
{
        char target[PATH_MAX], *joined;
        ssize_t n = readlinkat(link_fd, "", target, sizeof(target) - 1);
        int r;

        if (n <= 0)
                return cannot_open(f, n < 0 ? errno : ENOENT);
        target[n] = '\0';
        if (++f->n_links > MAX_LINKS)
                return cannot_open(f, ELOOP);
        if (asprintf(&joined, "%s%s%s", target, *f->rest ? "/" : "", f->rest) < 0)
                return cannot_open(f, ENOMEM);
        free(f->rest);
        f->rest = joined;
        r = note_owner(f, st->st_uid);
        return r;
}

/* Takes the next name off the rest. Empty: the rest has none. */
static int take_path_name(struct follow *f, char name[static NAME_MAX + 1])
{
        size_t skip = strspn(f->rest, "/"), n = strcspn(f->rest + skip, "/"), behind = skip + n;

        if (n > NAME_MAX)
                return cannot_open(f, ENAMETOOLONG);
        memcpy(name, f->rest + skip, n);
        name[n] = '\0';
        behind += strspn(f->rest + behind, "/");
        memmove(f->rest, f->rest + behind, strlen(f->rest + behind) + 1);
        return 0;
}

static int go_to_root(struct follow *f)
{
        _cleanup_(closep) int fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
        struct stat st;

        if (fd < 0 || fstat(fd, &st) < 0)
                return cannot_open(f, errno);
        return enter_folder(f, &fd, &st);
}

static int begin_walk(struct follow *f, int folder_fd, const char *path)
{
        _cleanup_(closep) int fd = -1;
        struct stat st;

        if (stat("/", &st) < 0)
                return cannot_open(f, errno);
        f->root_uid = st.st_uid;
        f->rest = strdup(path);
        if (!f->rest)
                return cannot_open(f, ENOMEM);
        fd = folder_fd == AT_FDCWD ? open(".", O_PATH | O_DIRECTORY | O_CLOEXEC) : fcntl(folder_fd, F_DUPFD_CLOEXEC, 0);
        if (fd < 0 || fstat(fd, &st) < 0)
                return cannot_open(f, errno);
        return enter_folder(f, &fd, &st);
}

static int not_regular(const struct follow *f)
{
        return tdm_error_set(f->err, TDM_E_BAD_REQUEST, "cannot open %s: it is not a regular file", f->path);
}

/* Opens the last name of the walk. Only what is a regular file is opened for reading: to open a device does things. */
static int open_last(struct follow *f, const char *name, int *ret_fd, struct stat *ret_st)
{
        _cleanup_(closep) int fd = openat(f->fd, name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW);

        if (fd < 0 || fstat(fd, ret_st) < 0)
                return cannot_open(f, errno);
        if (!S_ISREG(ret_st->st_mode))
                return not_regular(f);
        for (size_t i = 0; i < f->n_owners; i++)
                if (f->owners[i].uid != ret_st->st_uid && (f->owners[i].shut_out || !(ret_st->st_mode & S_IROTH)))
                        return tdm_error_set(f->err, TDM_E_DENIED,
                                             "%s is a file that the user %u, who owns a link or a folder on the way to "
                                             "it, may not read: name the file where it lies",
                                             f->path, (unsigned)f->owners[i].uid);
        *ret_fd = steal_fd(&fd);
        return 0;
}

/* One name of the path. *ret_done: it was the file. */
static int take_step(struct follow *f, int *ret_fd, struct stat *ret_st, bool *ret_done)
{
        _cleanup_(closep) int fd = -1;
        char name[NAME_MAX + 1];
        struct stat st;
        int r;

        *ret_done = false;
        if (f->rest[0] == '/') {
                r = go_to_root(f);
                if (r != 0)
                        return r;
        }
        r = take_path_name(f, name);
        if (r != 0)
                return r;
        if (!name[0])
                return not_regular(f); /* a path that ends in a folder */
        fd = openat(f->fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0)
                return cannot_open(f, errno);
        if (S_ISLNK(st.st_mode))
                return take_link(f, fd, &st);
        if (S_ISDIR(st.st_mode))
                return *f->rest ? enter_folder(f, &fd, &st) : not_regular(f);
        if (*f->rest)
                return cannot_open(f, ENOTDIR);
        if (!S_ISREG(st.st_mode))
                return not_regular(f);
        *ret_done = true;
        return open_last(f, name, ret_fd, ret_st);
}

int follow_open(int folder_fd, const char *path, int *ret_fd, struct stat *ret_st, struct tdm_error *err)
{
        struct follow f = { .path = path, .err = err, .fd = -1 };
        bool done = false;
        int r;

        r = path[0] ? begin_walk(&f, folder_fd, path) : cannot_open(&f, ENOENT);
        while (r == 0 && !done)
                r = take_step(&f, ret_fd, ret_st, &done);
        closep(&f.fd);
        free(f.rest);
        return r;
}
