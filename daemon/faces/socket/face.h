/* The client socket's face: connections, requests, replies (proto/tandem.proto).
 *
 * It translates between the wire and jobs, models and the fleet, and decides who may do what: peer credentials are
 * taken when a client connects. A user daemon serves its own uid and root; a system daemon serves everybody, and each
 * sees and cancels only what is its own (root: all). A client that speaks for another is that one in all of this.
 * Whatever a client can make grow is capped; a client that does not read has its jobs paused, and is hung up on when
 * that lasts. Only the files of this folder know the generated protobuf. Loop thread only. */
#ifndef TDM_DAEMON_FACES_SOCKET_FACE_H
#define TDM_DAEMON_FACES_SOCKET_FACE_H

#include "common/conn.h"
#include "daemon/accounts/accounts.h"
#include "daemon/schedule/scheduler.h"

#define TDM_CLIENT_MAX_FRAME_BYTES (UINT32_C(8) << 20)

struct tdm_face;

/* Who connected: the process with this pid that started at this time (of /proc/PID/stat). */
struct tdm_face_process {
        pid_t pid;
        uid_t uid;
        uint64_t start_time;
};

/* why: of a no. */
typedef void (*tdm_face_answer_fn)(bool yes, const char *why, void *request);

/* Asks whether a user may load models, by the rule of the bus. */
struct tdm_face_authority {
        /* 0: answer will be called, from the loop. *ret: to forget it by. */
        int (*ask)(const struct tdm_face_process *who, tdm_face_answer_fn answer, void *request, void **ret,
                   void *userdata);
        void (*forget)(void *question);
        void *userdata;
};

struct tdm_face_config {
        bool system;
        const char *socket;                  /* for status */
        struct tdm_accounts *accounts;       /* borrowed */
        struct tdm_face_authority authority; /* ask NULL: only root and the daemon's own user may load */
        uint64_t half_frame_ns;  /* how long half a frame may stand still, and half of its whole time; 0: 30 s */
        uint64_t not_reading_ns; /* how long a client may leave its replies unread; 0: 2 min */
};

/* All borrowed; fleet may change through tdm_face_set_fleet(). */
int tdm_face_new(struct tdm_face **ret, struct tdm_loop *loop, struct tdm_models *models,
                 struct tdm_scheduler *scheduler, const struct tdm_face_config *config);
/* Clients of this uid, and of no other, may speak for others: each of their connections may give a label (accounts.h).
 * At first there is no such uid. uid counts in state KNOWN. */
enum tdm_face_gateway {
        TDM_FACE_GATEWAY_NONE,
        TDM_FACE_GATEWAY_ASKED, /* its name is being looked up */
        TDM_FACE_GATEWAY_KNOWN
};
void tdm_face_set_gateway(struct tdm_face *face, enum tdm_face_gateway state, uid_t uid);
void tdm_face_set_fleet(struct tdm_face *face, struct tdm_fleet *fleet);
/* Closes all connections and cancels their jobs. */
void tdm_face_destroy(struct tdm_face *face);
void tdm_face_destroyp(struct tdm_face **face);

/* A new connection. Takes fd in any case. */
void tdm_face_accept(struct tdm_face *face, int fd);
void tdm_face_on_model_changed(struct tdm_face *face, struct tdm_model *model);
void tdm_face_set_draining(struct tdm_face *face);
/* Hangs up on everybody as soon as what is queued has been read, or after a second. */
void tdm_face_finish(struct tdm_face *face);
uint32_t tdm_face_n_connections(const struct tdm_face *face);

#endif
