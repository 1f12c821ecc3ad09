/* See elsewhere.h.
 *
 * LM Studio and Hugging Face's tools keep files under their names. Ollama keeps blobs named by their SHA-256, and a
 * manifest for each model: JSON whose layer of type application/vnd.ollama.image.model is the GGUF file. */
#include "client-lib/store/elsewhere.h"
#include "client-lib/store/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <sys/stat.h>

#define MAX_DEPTH 8u

const char *const elsewhere_programs[] = { "ollama", "lmstudio", "hf", NULL };

struct search {
        void (*fn)(const char *name, const char *path, uint64_t size_bytes, void *userdata);
        void *userdata;
        const char *root; /* of Ollama's models */
        size_t n;
};

/* Every regular file below a folder; links are followed to files, not to folders. */
static void walk(const char *folder, unsigned depth, void (*visit)(struct search *s, const char *path, uint64_t size),
                 struct search *s)
{
        DIR *d = opendir(folder);
        const struct dirent *e;

        while (d && (e = readdir(d))) {
                _cleanup_(freep) char *path = NULL;
                struct stat link, st;

                if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
                        continue;
                if (asprintf(&path, "%s/%s", folder, e->d_name) < 0) {
                        path = NULL;
                        break;
                }
                if (lstat(path, &link) < 0 || stat(path, &st) < 0)
                        continue;
                if (S_ISDIR(link.st_mode) && depth < MAX_DEPTH)
                        walk(path, depth + 1, visit, s);
                else if (S_ISREG(st.st_mode))
                        visit(s, path, (uint64_t)st.st_size);
        }
        if (d)
                closedir(d);
}

static void visit_gguf(struct search *s, const char *path, uint64_t size)
{
        size_t n = strlen(path);
        _cleanup_(freep) char *name = NULL;

        if (n <= 5 || strcmp(path + n - 5, ".gguf") != 0)
                return;
        name = folder_name_of(path);
        if (!name || strncmp(name, "mmproj", 6) == 0) /* of a picture's encoder */
                return;
        s->fn(name, path, size, s->userdata);
        s->n++;
}

/* …/manifests/HOST/library/NAME/TAG: the model is called NAME-TAG. */
static void visit_manifest(struct search *s, const char *path, uint64_t size)
{
        _cleanup_(freep) char *copy = strdup(path);
        char *tag, *name, model[300];
        json_t *root = json_load_file(path, 0, NULL), *layer;
        size_t i;

        tag = copy ? strrchr(copy, '/') : NULL;
        if (tag) {
                *tag++ = '\0';
                name = strrchr(copy, '/');
                snprintf(model, sizeof(model), "%s-%s", name ? name + 1 : copy, tag);
        }
        json_array_foreach(tag ? json_object_get(root, "layers") : NULL, i, layer)
        {
                const char *type = json_string_value(json_object_get(layer, "mediaType"));
                const char *digest = json_string_value(json_object_get(layer, "digest"));
                _cleanup_(freep) char *blob = NULL;
                struct stat st;

                if (!type || strcmp(type, "application/vnd.ollama.image.model") != 0 || !digest ||
                    strncmp(digest, "sha256:", 7) != 0 || strchr(digest, '/'))
                        continue;
                if (asprintf(&blob, "%s/blobs/sha256-%s", s->root, digest + 7) < 0) {
                        blob = NULL;
                        continue;
                }
                if (stat(blob, &st) != 0 || !S_ISREG(st.st_mode))
                        continue;
                s->fn(model, blob, (uint64_t)st.st_size, s->userdata);
                s->n++;
        }
        json_decref(root);
}

/* $ENV, or HOME/below; the caller's, NULL without. */
static char *place(const char *env, const char *below)
{
        const char *value = env ? getenv(env) : NULL, *home = getenv("HOME");
        char *path = NULL;

        if (value && value[0] == '/')
                return strdup(value);
        if (!home || home[0] != '/' || asprintf(&path, "%s/%s", home, below) < 0)
                return NULL;
        return path;
}

size_t elsewhere_each(const char *program,
                      void (*fn)(const char *name, const char *path, uint64_t size_bytes, void *userdata),
                      void *userdata, struct tdm_error *err)
{
        struct search s = { .fn = fn, .userdata = userdata };
        char *places[3] = { NULL };
        char searched[400] = "";
        size_t used = 0;

        if (strcmp(program, "ollama") == 0) {
                places[0] = place("OLLAMA_MODELS", ".ollama/models");
                places[1] = strdup("/usr/share/ollama/.ollama/models");
        } else if (strcmp(program, "lmstudio") == 0) {
                places[0] = place(NULL, ".lmstudio/models");
                places[1] = place(NULL, ".cache/lm-studio/models");
        } else {
                places[0] = place("HF_HUB_CACHE", ".cache/huggingface/hub");
        }
        for (size_t i = 0; i < TDM_ARRAY_SIZE(places); i++) {
                _cleanup_(freep) char *manifests = NULL;

                if (!places[i])
                        continue;
                if (used < sizeof(searched) - 1)
                        used += (size_t)snprintf(searched + used, sizeof(searched) - used, "%s%s", used ? ", " : "",
                                                 places[i]);
                s.root = places[i];
                if (strcmp(program, "ollama") != 0)
                        walk(places[i], 0, visit_gguf, &s);
                else if (asprintf(&manifests, "%s/manifests", places[i]) >= 0)
                        walk(manifests, 0, visit_manifest, &s);
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
