/* See elsewhere.h.
 *
 * LM Studio and Hugging Face's tools keep files under their names. Ollama keeps blobs named by their SHA-256, and a
 * manifest for each model: JSON whose layer of type application/vnd.ollama.image.model is the GGUF file. */
#include "client-lib/store/elsewhere.h"
#include "client-lib/store/folder.h"
#include "client-lib/store/follow.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>

#define MAX_DEPTH 8u
#define MAX_FILES 65536u /* that are looked at below one folder */
#define MAX_MANIFEST_BYTES ((size_t)1 << 20)
#define DIGEST_DIGITS 64u

const char *const elsewhere_programs[] = { "ollama", "lmstudio", "hf", NULL };

struct search {
        void (*fn)(struct elsewhere_model *model, void *userdata);
        void *userdata;
        const char *root; /* of Ollama's models */
        size_t n, n_files;
};

static void tell_model(struct search *s, const char *name, const char *path)
{
        struct tdm_error err;
        struct elsewhere_model model = { .name = name, .path = path, .fd = -1, .err = &err };
        struct stat st;

        (void)follow_open(AT_FDCWD, path, &model.fd, &st, &err);
        s->n++;
        s->fn(&model, s->userdata);
        closep(&model.fd);
}

/* Every file below a folder; links are followed to files, not to folders. */
static void walk_folder(const char *folder, unsigned depth, void (*visit)(struct search *s, const char *path),
                        struct search *s)
{
        DIR *d = opendir(folder);
        const struct dirent *e;

        while (d && s->n_files < MAX_FILES && (e = readdir(d))) {
                _cleanup_(freep) char *path = NULL;
                struct stat link;

                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                        continue;
                if (asprintf(&path, "%s/%s", folder, e->d_name) < 0) {
                        path = NULL;
                        break;
                }
                s->n_files++;
                if (lstat(path, &link) < 0)
                        continue;
                if (S_ISDIR(link.st_mode) && depth < MAX_DEPTH)
                        walk_folder(path, depth + 1, visit, s);
                else if (S_ISREG(link.st_mode) || S_ISLNK(link.st_mode))
                        visit(s, path);
        }
        if (d)
                closedir(d);
}

static void visit_gguf(struct search *s, const char *path)
{
        size_t n = strlen(path), stem;
        _cleanup_(freep) char *name = NULL;
        unsigned part, n_parts;

        if (n <= 5 || strcmp(path + n - 5, ".gguf") != 0)
                return;
        name = folder_name_of(path);
        if (!name || strncmp(name, "mmproj", 6) == 0) /* of a picture's encoder */
                return;
        if (folder_is_part(name, &stem, &part, &n_parts)) { /* a model in parts is its first */
                if (part > 1)
                        return;
                name[stem] = '\0';
        }
        tell_model(s, name, path);
}

/* The JSON text of a manifest; NULL: there is none, or it is none. */
static json_t *load_manifest(const char *path)
{
        _cleanup_(closep) int fd = -1;
        _cleanup_(freep) char *text = NULL;
        struct tdm_error err;
        struct stat st;
        size_t size = 0;

        if (follow_open(AT_FDCWD, path, &fd, &st, &err) != 0 || st.st_size > (off_t)MAX_MANIFEST_BYTES)
                return NULL;
        text = malloc(MAX_MANIFEST_BYTES);
        while (text && size < MAX_MANIFEST_BYTES) {
                ssize_t n = read(fd, text + size, MAX_MANIFEST_BYTES - size);

                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        break;
                size += (size_t)n;
        }
        return text ? json_loadb(text, size, 0, NULL) : NULL;
}

/* The digits of the blob that is the model; NULL: the manifest names none. */
static const char *digest_of_model(const json_t *manifest)
{
        const json_t *layer;
        size_t i;

        json_array_foreach(json_object_get(manifest, "layers"), i, layer)
        {
                const char *type = json_string_value(json_object_get(layer, "mediaType"));
                const char *digest = json_string_value(json_object_get(layer, "digest"));

                if (type && strcmp(type, "application/vnd.ollama.image.model") == 0 && digest &&
                    strncmp(digest, "sha256:", 7) == 0 && strlen(digest + 7) == DIGEST_DIGITS &&
                    strspn(digest + 7, "0123456789abcdefABCDEF") == DIGEST_DIGITS)
                        return digest + 7;
        }
        return NULL;
}

/* …/manifests/HOST/library/NAME/TAG: the model is called NAME-TAG. */
static void visit_manifest(struct search *s, const char *path)
{
        _cleanup_(freep) char *folder = strdup(path), *name = NULL, *blob = NULL;
        char *tag = folder ? strrchr(folder, '/') : NULL, *base;
        json_t *manifest = tag ? load_manifest(path) : NULL;
        const char *digest = digest_of_model(manifest);

        if (digest) {
                *tag++ = '\0';
                base = strrchr(folder, '/');
                if (asprintf(&name, "%s-%s", base ? base + 1 : folder, tag) < 0)
                        name = NULL;
                if (asprintf(&blob, "%s/blobs/sha256-%s", s->root, digest) < 0)
                        blob = NULL;
                if (name && blob)
                        tell_model(s, name, blob);
        }
        json_decref(manifest);
}

/* $ENV, or HOME/below; the caller's, NULL without. */
static char *search_place(const char *env, const char *below)
{
        const char *value = env ? getenv(env) : NULL, *home = getenv("HOME");
        char *path = NULL;

        if (value && value[0] == '/')
                return strdup(value);
        if (!home || home[0] != '/' || asprintf(&path, "%s/%s", home, below) < 0)
                return NULL;
        return path;
}

size_t elsewhere_each(const char *program, void (*fn)(struct elsewhere_model *model, void *userdata), void *userdata,
                      struct tdm_error *err)
{
        struct search s = { .fn = fn, .userdata = userdata };
        char *places[3] = { NULL };
        char searched[400] = "";
        size_t used = 0;

        if (strcmp(program, "ollama") == 0) {
                places[0] = search_place("OLLAMA_MODELS", ".ollama/models");
                places[1] = strdup("/usr/share/ollama/.ollama/models");
        } else if (strcmp(program, "lmstudio") == 0) {
                places[0] = search_place(NULL, ".lmstudio/models");
                places[1] = search_place(NULL, ".cache/lm-studio/models");
        } else {
                places[0] = search_place("HF_HUB_CACHE", ".cache/huggingface/hub");
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(places); i++) {
                _cleanup_(freep) char *manifests = NULL;

                if (!places[i])
                        continue;
                if (used < sizeof(searched) - 1)
                        used += (size_t)snprintf(searched + used, sizeof(searched) - used, "%s%s", used ? ", " : "",
                                                 places[i]);
                s.root = places[i];
                s.n_files = 0;
                if (strcmp(program, "ollama") != 0)
                        walk_folder(places[i], 0, visit_gguf, &s);
                else if (asprintf(&manifests, "%s/manifests", places[i]) >= 0)
                        walk_folder(manifests, 0, visit_manifest, &s);
                else
                        manifests = NULL;
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(places); i++)
                free(places[i]);
        if (s.n == 0)
                (void)tdm_error_set(err, TDM_E_NO_MODEL,
                                    "there are no GGUF files of %s that you may read; looked in %s", program,
                                    used ? searched : "no folder, since HOME is not set");
        return s.n;
}
