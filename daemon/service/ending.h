/* How the daemon ends: no new clients and no new jobs, time for the jobs that run, time for clients to read what is
 * queued for them, and at last the end of the loop. Loop thread only. */
#ifndef TDM_DAEMON_SERVICE_ENDING_H
#define TDM_DAEMON_SERVICE_ENDING_H

#include "daemon/faces/dbus/dbus.h"
#include "daemon/faces/socket/face.h"
#include "daemon/service/listener.h"

struct tdm_ending;

/* What comes to an end. All borrowed; dbus may be NULL. */
struct tdm_ending_parts {
        struct tdm_loop *loop;
        struct tdm_models *models;
        struct tdm_scheduler *scheduler;
        struct tdm_face *face;
        struct tdm_dbus *dbus;
};

int tdm_ending_new(struct tdm_ending **ret, const struct tdm_ending_parts *parts);
void tdm_ending_destroyp(struct tdm_ending **ending);
bool tdm_ending_has_begun(const struct tdm_ending *ending);
/* Begins it, for the reason that the log is told, and takes the listener down. The second time: cancels what runs. */
void tdm_ending_begin(struct tdm_ending *ending, struct tdm_listener **listener, const char *why);

#endif
