/* Pictures of a model; see pictures.h. */
#include "daemon/models/pictures.h"

#include <pthread.h>
#include <sys/mman.h>
#include "daemon/models/private.h"
#include "engine/vision/process.h"

#define PREFIX "mmproj-"
#define SUFFIX ".gguf"
/* The bounds of one picture; docs/pictures.md has them. */
#define MOST_FILE_BYTES (UINT64_C(32) << 20)
#define MOST_PIXELS (UINT64_C(64) << 20)
#define MOST_SIDE 16384u
#define DECODE_NS (10 * TDM_NSEC_PER_SEC)
#define TOWER_NS (600 * TDM_NSEC_PER_SEC)
#define KEPT_PICTURES 16u

/* A picture that was read, under the hash of its file. */
struct kept_picture {
        uint64_t reader;
        uint8_t file[TDM_SIPHASH_BYTES], pixels[TDM_SIPHASH_BYTES];
        float *rows; /* NULL: free */
        uint64_t used;
};

struct tdm_model_projector {
        char *path;
        int fd;
        struct tdm_file_identity identity;
        struct tdm_projector_config config;
        char *decoder; /* path of the program */
        struct tdm_projector description;
        uint32_t n_rows;
        struct tdm_tower_process *tower;
        struct tdm_error why; /* code 0: it can be used */
        pthread_mutex_t lock; /* of what follows */
        struct kept_picture kept[KEPT_PICTURES];
        uint64_t n_used;
};

/* ---- opening ---- */

/* DIR/NAME.gguf, or its first part, has DIR/mmproj-NAME.gguf. */
static char *projector_path(const char *model_path)
{
        const char *slash = strrchr(model_path, '/'), *base = slash ? slash + 1 : model_path;
        size_t size = strlen(base), name_bytes;
        uint32_t no, n;
        char *path;

        if (size < sizeof(SUFFIX) || strcmp(base + size - strlen(SUFFIX), SUFFIX) != 0 || tdm_is_projector_name(base))
                return NULL;
        size -= strlen(SUFFIX);
        if (tdm_part_of_name(base, size, &name_bytes, &no, &n) && n > 1)
                size = name_bytes;
        return asprintf(&path, "%.*s" PREFIX "%.*s" SUFFIX, (int)(base - model_path), model_path, (int)size, base) < 0 ?
                       NULL :
                       path;
}

bool tdm_is_projector_name(const char *base)
{
        return strncmp(base, PREFIX, strlen(PREFIX)) == 0;
}

static int start_tower(struct tdm_model_projector *p)
{
        _cleanup_(freep) char *program = NULL;
        struct tdm_tower_process_config config = { .fd = p->fd,
                                                   .name = p->path,
                                                   .n_threads = p->config.n_threads,
                                                   .act = p->config.exact ? TDM_ACT_F32 : TDM_ACT_I8,
                                                   .kv = p->config.exact ? TDM_KV_F32 : TDM_KV_F16,
                                                   .n_rows = p->n_rows,
                                                   .n_out = p->description.n_out };

        if (asprintf(&program, "%s/tandem-picture-worker", p->config.program_dir) < 0 ||
            asprintf(&p->decoder, "%s/tandem-picture-decoder", p->config.program_dir) < 0)
                return -ENOMEM;
        config.program = program;
        return tdm_tower_process_new(&p->tower, &config);
}

static int describe_projector(struct tdm_model_projector *p, const struct tdm_model_description *model,
                              const char *architecture, struct tdm_parse_limits *limits, struct tdm_error *err)
{
        struct tdm_gguf *gguf = NULL;
        int r = tdm_gguf_open_within(&gguf, p->fd, p->path, limits, err);

        if (r == 0)
                r = tdm_projector_describe_for(&p->description, gguf, model, architecture, &p->n_rows, err);
        tdm_gguf_close(gguf);
        if (r != 0)
                return r;
        if (p->n_rows > p->config.most_rows)
                return tdm_error_set(err, TDM_E_UNSUPPORTED,
                                     "its pictures have %u rows, and a step has room for %u of one; set max-rows to "
                                     "%u or more",
                                     p->n_rows, p->config.most_rows, p->n_rows + p->config.more_rows);
        return 0;
}

int tdm_model_projector_open(struct tdm_model_projector **ret, const char *path,
                             const struct tdm_model_description *model, const char *architecture,
                             const struct tdm_projector_config *config, struct tdm_parse_limits *limits)
{
        struct tdm_model_projector *p;
        int fd, r;
        char *beside = path ? projector_path(path) : NULL;

        *ret = NULL;
        if (!beside)
                return 0;
        fd = tdm_open_model_file(beside);
        p = fd == -ENOENT ? NULL : calloc(1, sizeof(*p));
        if (!p) {
                free(beside);
                if (fd >= 0)
                        close(fd);
                return fd == -ENOENT ? 0 : -ENOMEM;
        }
        pthread_mutex_init(&p->lock, NULL);
        p->path = beside;
        p->fd = fd < 0 ? -1 : fd;
        p->config = *config;
        r = fd < 0 ? fd : tdm_file_identify(fd, &p->identity);
        if (fd < 0) /* so that it is no news each time */
                (void)tdm_file_identify_path(p->path, &p->identity);
        if (r == 0)
                r = describe_projector(p, model, architecture, limits, &p->why);
        if (r == 0)
                r = start_tower(p);
        if (r != 0 && !p->why.message[0])
                tdm_error_set(&p->why, r, "cannot open it: %s", r == -ENXIO ? "it is no regular file" : strerror(-r));
        p->why.code = r;
        *ret = p;
        return 0;
}

void tdm_model_projector_rest(struct tdm_model_projector *p)
{
        if (p && p->tower)
                tdm_tower_process_rest(p->tower);
}

void tdm_model_projector_free(struct tdm_model_projector *p)
{
        if (!p)
                return;
        tdm_tower_process_destroy(p->tower);
        for (unsigned i = 0; i < KEPT_PICTURES; i++)
                free(p->kept[i].rows);
        pthread_mutex_destroy(&p->lock);
        closep(&p->fd);
        free(p->decoder);
        free(p->path);
        free(p);
}

const char *tdm_model_projector_why_not(const struct tdm_model_projector *p)
{
        return p->why.code != 0 ? p->why.message : NULL;
}

const char *tdm_model_projector_path(const struct tdm_model_projector *p)
{
        return p->path;
}

uint32_t tdm_model_projector_rows(const struct tdm_model_projector *p)
{
        return p->n_rows;
}

uint32_t tdm_model_projector_width(const struct tdm_model_projector *p)
{
        return p->description.n_out;
}

uint64_t tdm_model_projector_bytes(const struct tdm_model_projector *p)
{
        return p->identity.size_bytes;
}

bool tdm_model_projector_is_news(const struct tdm_model_projector *p, const char *model_path)
{
        _cleanup_(freep) char *beside = p || !model_path ? NULL : projector_path(model_path);
        const char *path = p ? p->path : beside;
        struct tdm_file_identity now;

        if (path && tdm_file_identify_path(path, &now) == 0)
                return !p || !tdm_file_identity_equal(&now, &p->identity);
        return p && p->identity.ino != 0;
}

const char *tdm_model_projector_changed(const struct tdm_model_projector *p)
{
        struct tdm_file_identity now;

        return p && p->why.code == 0 &&
                               (tdm_file_identify(p->fd, &now) < 0 || !tdm_file_identity_equal(&now, &p->identity)) ?
                       p->path :
                       NULL;
}

/* ---- reading a picture ---- */

static void hash_file(const struct tdm_model_projector *p, const void *file, size_t size,
                      uint8_t ret[TDM_SIPHASH_BYTES])
{
        struct tdm_siphash s;

        tdm_siphash_init(&s, p->config.secret);
        tdm_siphash_add(&s, file, size);
        tdm_siphash_end(&s, ret);
}

static void hash_pixels(const struct tdm_model_projector *p, const struct tdm_picture *picture,
                        uint8_t ret[TDM_SIPHASH_BYTES])
{
        const uint64_t about[] = { p->identity.dev, p->identity.ino,     p->identity.size_bytes, p->identity.mtime_ns,
                                   p->config.exact, picture->size.width, picture->size.height };
        struct tdm_siphash s;

        tdm_siphash_init(&s, p->config.secret);
        tdm_siphash_add(&s, about, sizeof(about));
        tdm_siphash_add(&s, picture->rgb, (size_t)picture->size.width * picture->size.height * 3);
        tdm_siphash_end(&s, ret);
}

static size_t rows_bytes(const struct tdm_model_projector *p)
{
        return (size_t)p->n_rows * p->description.n_out * sizeof(float);
}

static bool find_kept(struct tdm_model_projector *p, uint64_t reader, const uint8_t file[TDM_SIPHASH_BYTES],
                      float *rows, uint8_t ret_hash[TDM_SIPHASH_BYTES])
{
        bool found = false;

        pthread_mutex_lock(&p->lock);
        for (unsigned i = 0; i < KEPT_PICTURES && !found; i++) {
                struct kept_picture *k = &p->kept[i];

                if (!k->rows || k->reader != reader || memcmp(k->file, file, TDM_SIPHASH_BYTES) != 0)
                        continue;
                memcpy(rows, k->rows, rows_bytes(p));
                memcpy(ret_hash, k->pixels, TDM_SIPHASH_BYTES);
                k->used = ++p->n_used;
                found = true;
        }
        pthread_mutex_unlock(&p->lock);
        return found;
}

/* In the place of the one that was not used longest. */
static void keep_picture(struct tdm_model_projector *p, uint64_t reader, const uint8_t file[TDM_SIPHASH_BYTES],
                         const float *rows, const uint8_t pixels[TDM_SIPHASH_BYTES])
{
        struct kept_picture *k = &p->kept[0];

        pthread_mutex_lock(&p->lock);
        for (unsigned i = 1; i < KEPT_PICTURES; i++)
                if (p->kept[i].used < k->used)
                        k = &p->kept[i];
        if (!k->rows)
                k->rows = malloc(rows_bytes(p));
        if (k->rows) {
                memcpy(k->rows, rows, rows_bytes(p));
                memcpy(k->file, file, TDM_SIPHASH_BYTES);
                memcpy(k->pixels, pixels, TDM_SIPHASH_BYTES);
                k->reader = reader;
                k->used = ++p->n_used;
        }
        pthread_mutex_unlock(&p->lock);
}

static int file_memory(const void *file, size_t size, int *ret_fd)
{
        _cleanup_(closep) int fd = memfd_create("tandem-picture-file", MFD_CLOEXEC);

        for (size_t done = 0; fd >= 0 && done < size;) {
                ssize_t n = write(fd, (const uint8_t *)file + done, size - done);

                if (n < 0 && errno != EINTR)
                        return -errno;
                done += n > 0 ? (size_t)n : 0;
        }
        if (fd < 0)
                return -errno;
        *ret_fd = steal_fd(&fd);
        return 0;
}

int tdm_model_projector_read(struct tdm_model_projector *p, uint64_t reader, const void *file, size_t size,
                             const atomic_bool *cancelled, float *rows, uint8_t ret_hash[TDM_SIPHASH_BYTES],
                             struct tdm_error *err)
{
        const struct tdm_decoder_limits limits = { .most_bytes = MOST_FILE_BYTES,
                                                   .most_pixels = MOST_PIXELS,
                                                   .most_side = MOST_SIDE,
                                                   .deadline_ns = tdm_now_ns() + DECODE_NS };
        _cleanup_(tdm_picture_destroyp) struct tdm_picture *picture = NULL;
        _cleanup_(closep) int fd = -1;
        uint8_t name[TDM_SIPHASH_BYTES], pixels[TDM_SIPHASH_BYTES];
        int r;

        hash_file(p, file, size, name);
        if (find_kept(p, reader, name, rows, ret_hash))
                return 0;
        r = file_memory(file, size, &fd);
        if (r == 0)
                r = tdm_picture_decode(&picture, p->decoder, fd, &limits, err);
        if (r == 0)
                r = tdm_tower_process_run(p->tower, picture, tdm_now_ns() + TOWER_NS, cancelled, rows, err);
        if (r != 0)
                return r < 0 && (!err || !err->message[0]) ?
                               tdm_error_set(err, r, "cannot read the picture: %s", strerror(-r)) :
                               r;
        hash_pixels(p, picture, pixels);
        keep_picture(p, reader, name, rows, pixels);
        memcpy(ret_hash, pixels, TDM_SIPHASH_BYTES);
        return 0;
}
