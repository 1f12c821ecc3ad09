/* The registry: which file a request means, whether it is loaded already, and which jobs use it. life.c has what
 * happens to a model between being asked for and leaving. A failed model stays listed, for status, until the next
 * request for it or until the list is full. */
#include "daemon/models/private.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/random.h>
#include "common/log.h"

#define CLOSER_THREADS 4u
#define NOBODY (UINT64_MAX - 1) /* no identity */

static int add_file(struct tdm_models *m, const char *path, struct tdm_error *err)
{
        struct tdm_file_identity identity;
        _cleanup_(closep) int fd = -1;
        struct named_file *f;
        int r;

        if (m->n_files >= TDM_MAX_MODEL_FILES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "more than %u --model files", TDM_MAX_MODEL_FILES);
        fd = tdm_open_model_file(path);
        r = fd < 0 ? fd : tdm_file_identify(fd, &identity);
        if (r < 0)
                return tdm_error_set(err, TDM_E_NO_MODEL, "cannot open model %s: %s", path,
                                     r == -ENXIO ? "it is not a regular file" : strerror(-r));
        f = &m->files[m->n_files];
        f->name = tdm_model_name_of_path(path);
        f->path = realpath(path, NULL);
        if (!f->name || !f->path) {
                free(steal_ptr(&f->name));
                free(steal_ptr(&f->path));
                return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        m->n_files++;
        return 0;
}

static int copy_dirs(struct tdm_models *m, const char *const *dirs)
{
        size_t n = 0;

        while (dirs && dirs[n])
                n++;
        m->dirs = calloc(n + 1, sizeof(*m->dirs));
        if (!m->dirs)
                return -ENOMEM;
        for (size_t i = 0; i < n; i++) {
                m->dirs[i] = strdup(dirs[i]);
                if (!m->dirs[i])
                        return -ENOMEM;
        }
        return 0;
}

static int set_up_pictures(struct tdm_models *m, const struct tdm_models_config *config)
{
        char exe[4096] = "", *slash;

        if (!config->program_dir) {
                ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

                exe[TDM_MAX(n, 0)] = '\0';
                slash = strrchr(exe, '/');
                if (slash)
                        *slash = '\0';
        }
        m->program_dir = strdup(config->program_dir ? config->program_dir : exe);
        m->pictures = (struct tdm_projector_config){
                .program_dir = m->program_dir,
                .n_threads = config->n_threads,
                .exact = config->precision == TDM_PRECISION_F32,
                .most_rows = config->max_rows - TDM_MIN(config->max_rows, config->max_sequences),
                .more_rows = config->max_sequences,
        };
        if (getrandom(m->pictures.secret, sizeof(m->pictures.secret), 0) != sizeof(m->pictures.secret))
                return -errno;
        return m->program_dir ? 0 : -ENOMEM;
}

int tdm_models_new(struct tdm_models **ret, struct tdm_loop *loop, const struct tdm_models_config *config,
                   struct tdm_error *err)
{
        _cleanup_(tdm_models_destroyp) struct tdm_models *m = calloc(1, sizeof(*m));
        int r;

        if (!m)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        m->loop = loop;
        m->precision = config->precision;
        m->kv_type = tdm_precision_kv_type(config->precision, config->kv_type);
        m->kv_bytes = config->kv_bytes;
        m->activations = config->activations;
        m->no_prefix_cache = config->no_prefix_cache;
        m->serves_all = config->serves_all;
        m->idle_ns = config->idle_s * TDM_NSEC_PER_SEC;
        m->max_rows = config->max_rows;
        m->max_sequences = config->max_sequences;
        m->accounts = config->accounts;
        r = set_up_pictures(m, config);
        if (r < 0)
                return tdm_error_set(err, r, "cannot set up what reads pictures: %s", strerror(-r));
        if (m->accounts) {
                m->root = tdm_accounts_get(m->accounts, 0);
                if (!m->root)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
        }
        tdm_list_init(&m->list);
        tdm_list_init(&m->left);
        r = tdm_models_set_default(m, config->default_name);
        if (r < 0)
                return tdm_error_set(err, r, "out of memory");
        r = copy_dirs(m, config->dirs);
        if (r == 0)
                r = tdm_loop_add_timer(loop, tdm_models_on_tick, m, &m->tick);
        if (r == 0)
                r = tdm_background_new_pool(&m->closer, loop, CLOSER_THREADS);
        if (r < 0)
                return tdm_error_set(err, r, "cannot set up the model registry: %s", strerror(-r));
        for (const char *const *f = config->files; f && *f; f++) {
                r = add_file(m, *f, err);
                if (r != 0)
                        return r;
        }
        *ret = steal_ptr(&m);
        return 0;
}

void tdm_models_set_fleet(struct tdm_models *m, struct tdm_fleet *fleet)
{
        m->fleet = fleet;
}

int tdm_models_set_default(struct tdm_models *m, const char *name)
{
        char *copy = name ? strdup(name) : NULL;

        if (name && !copy)
                return -ENOMEM;
        free(m->default_name);
        m->default_name = copy;
        return 0;
}

int tdm_models_observe(struct tdm_models *m, tdm_model_changed_fn fn, void *userdata)
{
        if (m->n_observers >= MAX_OBSERVERS)
                return -ENOSPC;
        m->observers[m->n_observers].fn = fn;
        m->observers[m->n_observers++].userdata = userdata;
        return 0;
}

void tdm_models_on_rows(struct tdm_models *m, tdm_model_changed_fn fn, void *userdata)
{
        m->on_rows = fn;
        m->rows_userdata = userdata;
}

void tdm_models_destroy(struct tdm_models *m)
{
        struct tdm_model *model;

        if (!m)
                return;
        m->n_observers = 0;
        m->on_rows = NULL;
        m->fleet = NULL;
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                tdm_model_load_destroyp(&model->load); /* its thread writes into the segments */
                tdm_model_leave(model);
                tdm_model_unlist(model);
        }
        tdm_models_free_left(m, UINT64_MAX);
        tdm_background_destroyp(&m->fetcher); /* what it held may be closed */
        tdm_background_destroyp(&m->closer);
        tdm_summaries_free(m->summaries);
        tdm_source_destroyp(&m->tick);
        for (unsigned i = 0; i < m->n_files; i++) {
                free(m->files[i].name);
                free(m->files[i].path);
        }
        tdm_strv_freep(&m->dirs);
        free(m->program_dir);
        free(m->default_name);
        tdm_account_unref(m->root);
        free(m);
}

void tdm_models_destroyp(struct tdm_models **m)
{
        tdm_models_destroy(*m);
        *m = NULL;
}

static struct tdm_model *model_find_file(struct tdm_models *m, const struct tdm_file_identity *identity)
{
        struct tdm_model *model;

        tdm_list_for_each(model, &m->list, struct tdm_model, node)
                if (model->state != TDM_MODEL_FAILED && !model->superseded &&
                    tdm_file_identity_equal(&model->identity, identity))
                        return model;
        return NULL;
}

/* A failed model makes room for the next try, and an older version of a file does when no job uses it. The same file is
 * the same inode. A name means one file of the daemon's own. A path that a client said means one file to that user. */
static void forget_older(struct tdm_models *m, const struct tdm_account *account, const char *path, const char *name,
                         const struct tdm_file_identity *identity)
{
        struct tdm_model *model;

        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                bool same_name = name && model->by_name && strcmp(model->name, name) == 0;
                bool same_path = !name && path[0] == '/' && !model->by_name && tdm_model_said_by(model, account, path);
                bool same_inode = model->identity.dev == identity->dev && model->identity.ino == identity->ino;

                if ((!same_name && !same_path && !same_inode) || model->use.n_steps > 0 || model->use.n_jobs > 0 ||
                    model->load)
                        continue;
                tdm_model_retire(model);
        }
}

static int make_room_for_model(struct tdm_models *m, const struct tdm_account *account, struct tdm_error *err)
{
        struct tdm_model *model;

        tdm_list_for_each(model, &m->list, struct tdm_model, node)
                if (m->n_models >= TDM_MAX_MODELS && model->state == TDM_MODEL_FAILED && model->use.n_steps == 0 &&
                    !model->load)
                        tdm_model_retire(model);
        while (m->n_models >= TDM_MAX_MODELS)
                if (!tdm_models_evict_one(m, account, NULL))
                        return tdm_error_set(err, TDM_E_BUSY, "%u models are in use already; wait until one is not",
                                             TDM_MAX_MODELS);
        return 0;
}

/* Takes fd on success. */
static int add_model(struct tdm_models *m, struct tdm_account *account, const char *path, const char *name, int fd,
                     const struct tdm_file_identity *identity, struct tdm_model **ret, struct tdm_error *err)
{
        _cleanup_(tdm_model_unrefp) struct tdm_model *model = NULL;
        int r = make_room_for_model(m, account, err);

        if (r != 0)
                return r;
        model = calloc(1, sizeof(*model));
        if (!model)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        model->n_refs = 1;
        model->models = m;
        model->fd = -1;
        model->identity = *identity;
        model->precision = m->precision;
        model->kv_type = m->kv_type;
        model->id = ++m->last_id;
        model->use.keeper = NOBODY;
        tdm_list_init(&model->users);
        model->use.last_ns = tdm_now_ns();
        model->name = name ? strdup(name) : tdm_model_name_of_path(path);
        model->path = strdup(path);
        if (!model->name || !model->path)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        model->by_name = name != NULL;
        if (tdm_model_is_default(model) && m->root)
                account = m->root;
        model->account = account ? tdm_account_ref(account) : NULL;
        model->charges.metadata_payer = account ? tdm_account_ref(account) : NULL;
        model->fd = fd;
        r = tdm_model_start(model, err);
        if (r != 0)
                model->fd = -1; /* the caller's still */
        if (r > 0)
                return r;
        if (r < 0)
                return tdm_error_set(err, r, "cannot start loading model %s: %s", path, strerror(-r));
        tdm_list_append(&m->list, &model->node);
        model->listed = true;
        m->n_models++;
        *ret = steal_ptr(&model);
        return 0;
}

/* A client's own file turns out to be one of the daemon's. */
static int become_named(struct tdm_model *model, const char *path, const char *name)
{
        char *own = strdup(name), *copy = strdup(path);

        if (own && copy) {
                free(model->name);
                free(model->path);
                model->name = steal_ptr(&own);
                model->path = steal_ptr(&copy);
                model->by_name = true;
                if (tdm_model_is_default(model))
                        tdm_model_give_to_root(model);
        }
        free(own);
        free(copy);
        return 0;
}

/* A projector was put beside the model's file, exchanged or taken away after the model was read: it is read anew for
 * whoever asks from now on. Jobs that have begun go on with what they began with. */
static bool is_superseded(struct tdm_model *model, const char *named_path)
{
        const struct tdm_model_metadata *metadata = model->metadata;
        char room[4400];

        if (!metadata || (!named_path && metadata->is_far)) /* a path that a client's file has is not waited for */
                return false;
        model->superseded = tdm_model_projector_is_news(
                metadata->projector, named_path ? named_path : tdm_model_place(model, room, sizeof(room)));
        if (model->superseded)
                tdm_log_info("model %s: what lies beside its file for pictures is another now; it is read anew",
                             model->name);
        return model->superseded;
}

/* Takes *own when that is a new model. name: of the daemon's own file; NULL: a client passed it. */
static int open_model_by_file(struct tdm_models *m, struct tdm_account *account, const char *path, const char *name,
                              int *own, struct tdm_model **ret, struct tdm_error *err)
{
        struct tdm_file_identity identity;
        struct tdm_model *model;
        int r = tdm_file_identify(*own, &identity);

        if (r < 0)
                return tdm_error_set(err, TDM_E_NO_MODEL, "cannot open model %.*s: %s", TDM_UTF8_CUT(path, 200),
                                     r == -ENXIO ? "it is not a regular file" : strerror(-r));
        model = model_find_file(m, &identity);
        if (model && !is_superseded(model, name ? path : NULL)) {
                tdm_model_touch(model);
                *ret = tdm_model_ref(model);
                return name && !model->by_name ? become_named(model, path, name) : 0;
        }
        forget_older(m, account, path, name, &identity);
        r = add_model(m, account, path, name, *own, &identity, &model, err);
        if (r != 0)
                return r;
        *own = -1;
        *ret = tdm_model_ref(model);
        return 0;
}

/* The file that this user passed last under this path; a draft is named by its path so. An older one may still be in
 * use. */
static bool open_said(struct tdm_models *m, const struct tdm_account *account, const char *said_path,
                      struct tdm_model **ret)
{
        _cleanup_(freep) char *path = strdup(said_path);
        struct tdm_model *model, *found = NULL;
        uint64_t found_at = 0;

        if (!path)
                return false;
        tdm_utf8_mend(path); /* as it is remembered */
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                const struct tdm_model_said *said = tdm_model_said_by(model, account, path);

                if (model->state != TDM_MODEL_FAILED && said && said->at > found_at) {
                        found = model;
                        found_at = said->at;
                }
        }
        if (!found)
                return false;
        tdm_model_touch(found);
        *ret = tdm_model_ref(found);
        return true;
}

int tdm_models_open(struct tdm_models *m, struct tdm_account *account, const char *name, int fd, struct tdm_model **ret,
                    struct tdm_error *err)
{
        _cleanup_(freep) char *path = NULL, *own_name = NULL;
        _cleanup_(closep) int own = -1;
        int r;

        if (fd >= 0) {
                int flags = fcntl(fd, F_GETFL);

                path = name && name[0] ? strndup(name, PATH_MAX) : strdup("(passed by the client)");
                if (!path)
                        return tdm_error_set(err, -ENOMEM, "out of memory");
                if (flags < 0 || (flags & O_PATH) || (flags & O_ACCMODE) == O_WRONLY)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "the file passed for model %.*s is not open for reading",
                                             TDM_UTF8_CUT(path, 200));
                own = fcntl(fd, F_DUPFD_CLOEXEC, 3);
                if (own < 0)
                        return tdm_error_set(err, -errno, "cannot keep the file of model %.*s: %s",
                                             TDM_UTF8_CUT(path, 200), strerror(errno));
        } else {
                if (name && name[0] == '/' && open_said(m, account, name, ret))
                        return 0;
                r = tdm_models_open_name(m, name && name[0] ? name : tdm_models_default_name(m), &own, &path, &own_name,
                                         err);
                if (r != 0 && !(name && name[0])) /* a name that the client has not said */
                        return tdm_error_prefix(err, "no model was named, and the default model is not there%s",
                                                m->default_name ? " (default-model in tandem.conf)" : "");
                if (r != 0)
                        return r;
        }
        tdm_utf8_mend(path);
        r = open_model_by_file(m, account, path, own_name, &own, ret, err);
        if (r == 0 && fd >= 0)
                tdm_model_remember_said(*ret, account, path);
        tdm_models_close_file(m, account, steal_fd(&own));
        return r;
}

int tdm_model_job_begin(struct tdm_model *model, struct tdm_account *account, struct tdm_error *err)
{
        int r = tdm_model_add_user(model, account, err);

        if (r != 0)
                return r;
        model->use.n_jobs++;
        model->use.last_ns = tdm_now_ns();
        tdm_models_arm_tick(model->models);
        return 0;
}

void tdm_model_keep(struct tdm_model *model, const struct tdm_account *account, uint32_t keep_s)
{
        uint64_t now = tdm_now_ns(), idle_ns = model->models->idle_ns, until = UINT64_MAX;
        uint64_t identity = account ? account->identity : UINT64_MAX;

        if (keep_s > 0)
                until = now + keep_s * TDM_NSEC_PER_SEC;
        else if (idle_ns > 0)
                until = now + idle_ns;
        if (identity != model->use.keeper && until > model->use.keep_until_ns) {
                model->use.keep_others_ns = model->use.keep_until_ns;
                model->use.keep_until_ns = until;
                model->use.keeper = identity;
        } else if (identity == model->use.keeper)
                model->use.keep_until_ns = TDM_MAX(until, model->use.keep_others_ns);
        model->use.last_ns = now;
        tdm_models_arm_tick(model->models);
}

void tdm_model_job_end(struct tdm_model *model, const struct tdm_account *account, uint32_t keep_s)
{
        model->use.n_jobs--;
        tdm_model_remove_user(model, account);
        tdm_model_keep(model, account, keep_s);
}

/* A file may have several names, by links. Its model has the one under which it was opened first. NULL: no model of it
 * is listed. The other names mean that model too. */
static const char *first_name(struct tdm_models *m, const char *name, struct tdm_error *err)
{
        _cleanup_(freep) char *path = NULL, *own_name = NULL;
        struct tdm_file_identity identity;
        struct tdm_model *model = NULL;
        int fd = -1;

        if (tdm_models_open_name(m, name, &fd, &path, &own_name, err) != 0)
                return NULL;
        if (tdm_file_identify(fd, &identity) == 0)
                model = model_find_file(m, &identity);
        tdm_models_close_file(m, m->root, fd);
        if (model && model->by_name)
                return model->name;
        tdm_error_set(err, TDM_E_NO_MODEL, "model %.*s is not loaded", TDM_UTF8_CUT(name, 200));
        return NULL;
}

int tdm_models_unload(struct tdm_models *m, const char *name, struct tdm_error *err)
{
        struct tdm_model *model;
        bool found = false, named = false, known = false;

        if (!name || !name[0])
                name = tdm_models_default_name(m);
        tdm_list_for_each(model, &m->list, struct tdm_model, node)
                known = known || strcmp(model->name, name) == 0;
        if (!known && !(name = first_name(m, name, err)))
                return TDM_E_NO_MODEL;
        /* Files of this name that clients passed are unloaded only if the daemon has no model of this name itself. */
        tdm_list_for_each(model, &m->list, struct tdm_model, node)
                named = named || (model->by_name && strcmp(model->name, name) == 0);
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (strcmp(model->name, name) != 0 || model->by_name != named)
                        continue;
                found = true;
                if (model->use.n_jobs > 0 || model->load)
                        return tdm_error_set(err, TDM_E_BUSY, "model %s is in use by %u job%s; cancel %s first", name,
                                             model->use.n_jobs, model->use.n_jobs == 1 ? "" : "s",
                                             model->use.n_jobs == 1 ? "it" : "them");
        }
        if (!found)
                return tdm_error_set(err, TDM_E_NO_MODEL, "model %.*s is not loaded", TDM_UTF8_CUT(name, 200));
        tdm_list_for_each(model, &m->list, struct tdm_model, node) {
                if (strcmp(model->name, name) != 0 || model->by_name != named)
                        continue;
                tdm_log_info("model %s unloaded as asked", name);
                tdm_model_retire(model);
        }
        return 0;
}

struct tdm_model *tdm_models_find_file(struct tdm_models *m, const struct tdm_file_identity *identity)
{
        struct tdm_model *model = model_find_file(m, identity);

        return model && model->by_name ? model : NULL;
}

struct tdm_list *tdm_models_list(struct tdm_models *m)
{
        return &m->list;
}
