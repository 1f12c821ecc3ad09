/* What the faces say of the workers, the models and the daemon: a member for each row of common/status-fields.def. The
 * values are gathered here, once for all faces, from their owners whenever a face asks; nothing is kept. Loop thread
 * only. */
#ifndef TDM_DAEMON_FACES_STATUS_H
#define TDM_DAEMON_FACES_STATUS_H

#include "daemon/schedule/scheduler.h"

/* The member that a field of a type has. Texts are never NULL. */
#define TDM_STATUS_MEMBER_TEXT(field) const char *field;
#define TDM_STATUS_MEMBER_U32(field) uint32_t field;
#define TDM_STATUS_MEMBER_U64(field) uint64_t field;
#define TDM_STATUS_MEMBER_REAL(field) double field;
#define TDM_STATUS_MEMBER_BOOL(field) bool field;

struct tdm_worker_fields {
#define WORKER_FIELD(TYPE, field, ...) TDM_STATUS_MEMBER_##TYPE(field)
#include "common/status-fields.def"
};

struct tdm_model_fields {
#define MODEL_FIELD(TYPE, field, ...) TDM_STATUS_MEMBER_##TYPE(field)
#include "common/status-fields.def"
};

struct tdm_daemon_fields {
#define DAEMON_FIELD(TYPE, field, ...) TDM_STATUS_MEMBER_##TYPE(field)
#include "common/status-fields.def"
};

/* Whom to ask. */
struct tdm_status_source {
        struct tdm_models *models;
        struct tdm_scheduler *scheduler;
        struct tdm_fleet *fleet; /* NULL: there is none yet */
        const char *socket;
        uint64_t started_ns;
        bool draining;
        /* Every name and count. Else names of passed files are their owner's, and others' counts are coarse. */
        bool sees_all;
        const struct tdm_account *viewer; /* whose names and counts are shown then; NULL: nobody's */
};

struct tdm_worker_shown {
        struct tdm_worker_fields fields;
        struct tdm_worker_status from; /* has the texts, and what is no row */
};

struct tdm_model_shown {
        struct tdm_model_fields fields;
        char placement[48];
};

/* source->fleet is not NULL. */
void tdm_status_of_worker(const struct tdm_status_source *source, enum tdm_worker_index index,
                          struct tdm_worker_shown *ret);
#define TDM_STATUS_UNNAMED "(another user's)" /* stands in place of a name that the viewer did not give */
/* The model as the viewer may read it, in lists. */
const char *tdm_status_name_of(const struct tdm_status_source *source, const struct tdm_model *model);
/* The texts live as long as the model does not change. */
void tdm_status_of_model(const struct tdm_status_source *source, struct tdm_model *model, struct tdm_model_shown *ret);
/* The same of a file that a list found: its model's under this name, where it is in use under another. False: its model
 * is listed under this very name. *ret_model: NULL, there is none. name and path are borrowed. */
bool tdm_status_of_file(const struct tdm_status_source *source, const char *name, const char *path, uint64_t size_bytes,
                        const struct tdm_file_identity *identity, struct tdm_model_shown *ret,
                        struct tdm_model **ret_model);
/* "asked for by root", or by "user 1000": why a worker was restarted. */
void tdm_status_asked_by(char *to, size_t size, uint32_t uid);
/* The scheduler's counts as the viewer may read them: its own, and others' coarsely. */
void tdm_status_stats(const struct tdm_status_source *source, struct tdm_scheduler_stats *ret);
void tdm_status_of_daemon(const struct tdm_status_source *source, struct tdm_daemon_fields *ret);

#endif
