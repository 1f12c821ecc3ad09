/* Models that were split into several files: NAME-00001-of-00003.gguf and so on, in one directory. The model's name is
 * NAME, its file the first one. The others are opened beside it, by the thread that reads the metadata.
 *
 * Where a client passed the first file, the daemon opens the others only if it has no more rights than that client has:
 * a private daemon, not one that serves everybody. */
#include "daemon/models/private.h"

#include <dirent.h>
#include <limits.h>
#include <sys/stat.h>

#define SUFFIX_BYTES 15u /* "-00001-of-00003" */

bool tdm_part_of_name(const char *base, size_t size, size_t *ret_name_bytes, uint32_t *ret_no, uint32_t *ret_n)
{
        const char *suffix = base + size - SUFFIX_BYTES;
        uint32_t no = 0, n = 0;

        if (size <= SUFFIX_BYTES || suffix[0] != '-' || memcmp(suffix + 6, "-of-", 4) != 0)
                return false;
        for (unsigned i = 0; i < 5; i++) {
                if (suffix[1 + i] < '0' || suffix[1 + i] > '9' || suffix[10 + i] < '0' || suffix[10 + i] > '9')
                        return false;
                no = 10 * no + (uint32_t)(suffix[1 + i] - '0');
                n = 10 * n + (uint32_t)(suffix[10 + i] - '0');
        }
        if (no < 1 || no > n || n > TDM_GGUF_PARTS_MAX)
                return false;
        *ret_name_bytes = size - SUFFIX_BYTES;
        *ret_no = no;
        *ret_n = n;
        return true;
}

/* The path of part `no` of n, from 1 on. The first name_bytes of `path` are the common name. */
static void part_path(char ret[static PART_PATH_BYTES], const char *path, size_t name_bytes, uint32_t no, uint32_t n)
{
        snprintf(ret, PART_PATH_BYTES, "%.*s-%05u-of-%05u.gguf", (int)TDM_MIN(name_bytes, (size_t)PATH_MAX), path, no,
                 n);
}

uint64_t tdm_size_of_other_parts(const char *first_path)
{
        size_t len = strlen(first_path), name_bytes;
        uint64_t bytes = 0;
        uint32_t no, n;

        if (len < 6 || !tdm_part_of_name(first_path, len - 5, &name_bytes, &no, &n) || no != 1)
                return 0;
        for (uint32_t i = 2; i <= n; i++) {
                char path[PART_PATH_BYTES];
                struct stat st;

                part_path(path, first_path, name_bytes, i, n);
                if (stat(path, &st) == 0)
                        bytes += (uint64_t)st.st_size;
        }
        return bytes;
}

int tdm_open_first_part(const char *dir, const char *name, char *ret_path, size_t path_bytes)
{
        DIR *d = opendir(dir);
        size_t size = strlen(name);
        struct dirent *e;
        int fd = -ENOENT;

        while (d && fd == -ENOENT && (e = readdir(d))) {
                size_t len = strlen(e->d_name), name_bytes;
                uint32_t no, n;

                if (len < 6 || strcmp(e->d_name + len - 5, ".gguf") != 0 ||
                    !tdm_part_of_name(e->d_name, len - 5, &name_bytes, &no, &n) || no != 1 || n == 1 ||
                    name_bytes != size || memcmp(e->d_name, name, size) != 0)
                        continue;
                snprintf(ret_path, path_bytes, "%.4096s/%.256s", dir, e->d_name);
                fd = tdm_open_model_file(ret_path);
        }
        if (d)
                closedir(d);
        return fd;
}

/* ---- the parts of a model that is loaded ---- */

void tdm_model_parts_free(struct tdm_model_parts *parts)
{
        for (uint32_t i = 0; parts && i < parts->n; i++)
                closep(&parts->files[i].fd);
        free(parts);
}

/* path: of the first one. */
int tdm_model_parts_open(const char *path, uint32_t n_parts, struct tdm_model_parts **ret, struct tdm_error *err)
{
        size_t len = strlen(path), name_bytes = 0;
        struct tdm_model_parts *parts;
        uint32_t no = 0, n = 0;

        if (len < 6 || strcmp(path + len - 5, ".gguf") != 0 || !tdm_part_of_name(path, len - 5, &name_bytes, &no, &n) ||
            no != 1 || n != n_parts)
                return tdm_error_set(err, TDM_E_BAD_MODEL,
                                     "cannot open model %.*s: it is the first of %u parts, and its name does not end "
                                     "in -00001-of-%05u.gguf: the others cannot be found",
                                     TDM_UTF8_CUT(path, 200), n_parts, n_parts);
        parts = calloc(1, sizeof(*parts) + (n_parts - 1) * sizeof(parts->files[0]));
        if (!parts)
                return tdm_error_set(err, -ENOMEM, "out of memory for %u files", n_parts);
        for (uint32_t i = 0; i < n_parts - 1; i++) {
                struct tdm_model_part *part = &parts->files[i];
                int r;

                part_path(part->path, path, name_bytes, i + 2, n);
                part->fd = tdm_open_model_file(part->path);
                r = part->fd < 0 ? part->fd : tdm_file_identify(part->fd, &part->identity);
                parts->n++;
                if (r < 0) {
                        r = tdm_error_set(err, TDM_E_BAD_MODEL, "cannot open part %u of %u of a model, %.*s: %s", i + 2,
                                          n, TDM_UTF8_CUT(part->path, 300),
                                          r == -ENXIO ? "it is not a regular file" : strerror(-r));
                        tdm_model_parts_free(parts);
                        return r;
                }
        }
        *ret = parts;
        return 0;
}

const char *tdm_model_parts_changed(const struct tdm_model_parts *parts)
{
        for (uint32_t i = 0; parts && i < parts->n; i++) {
                struct tdm_file_identity now;

                if (tdm_file_identify(parts->files[i].fd, &now) < 0 ||
                    !tdm_file_identity_equal(&now, &parts->files[i].identity))
                        return parts->files[i].path;
        }
        return NULL;
}
