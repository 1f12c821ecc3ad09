/* The D-Bus face: name dev.tandem.Tandem1, proto/dev.tandem.Tandem1.xml, docs/dbus-api.md.
 *
 * The sibling of the client face: it translates between bus messages and jobs, models and the fleet, and decides who
 * may do what by the uid that the bus vouches for. On a user's bus it serves that user and root; on the system's
 * everybody, within what polkit allows. Nothing in it ever waits: bus, credentials, polkit and the readers of pipes are
 * all answered from the loop. The bus may go away and come back. Only the files of this folder know libdbus. Loop
 * thread only. */
#ifndef TDM_DAEMON_FACES_DBUS_DBUS_H
#define TDM_DAEMON_FACES_DBUS_DBUS_H

#include "daemon/accounts/accounts.h"
#include "daemon/schedule/scheduler.h"

struct tdm_dbus;

/* What an earlier daemon gave to the service manager, of its jobs. */
#define TDM_DBUS_STORED "job-"
struct tdm_dbus_stored {
        char name[40];
        int fd;
};

struct tdm_dbus_config {
        bool system;        /* serves everybody, asks polkit */
        const char *bus;    /* session, system, an address, none; NULL: session or system, where there is one */
        const char *socket; /* for status */
        struct tdm_accounts *accounts;  /* borrowed */
        struct tdm_dbus_stored *stored; /* [n_stored]; descriptors that are taken become -1 */
        size_t n_stored;
};

/* All borrowed. A bus that cannot be reached is tried again, so it is no error. TDM_E_BAD_REQUEST: an address that can
 * never work. *ret is NULL where no bus is wanted. */
int tdm_dbus_new(struct tdm_dbus **ret, struct tdm_loop *loop, struct tdm_models *models,
                 struct tdm_scheduler *scheduler, const struct tdm_dbus_config *config, struct tdm_error *err);
/* These take NULL: no bus is wanted. */
void tdm_dbus_set_fleet(struct tdm_dbus *bus, struct tdm_fleet *fleet);
void tdm_dbus_on_model_changed(struct tdm_dbus *bus, struct tdm_model *model);
void tdm_dbus_on_workers_changed(struct tdm_dbus *bus); /* or may have */
/* Asks polkit on the system's bus whether a process may manage models: pid, started at start_time (/proc/PID/stat), of
 * user uid. answer is called from the loop, with why of a no. -ENOTCONN: there is no such bus. */
struct tdm_dbus_question;
int tdm_dbus_ask_load(struct tdm_dbus *bus, pid_t pid, uint64_t start_time, uid_t uid,
                      void (*answer)(bool yes, const char *why, void *userdata), void *userdata,
                      struct tdm_dbus_question **ret);
void tdm_dbus_forget_question(struct tdm_dbus_question *question); /* answer is not called */
/* Asks systemd on this bus to kill what runs as this unit; on the system's bus a polkit rule of ours allows it. */
void tdm_dbus_kill_unit(struct tdm_dbus *bus, const char *unit);
/* Asks systemd on this bus whether it is about to stop that unit, and not to start it again. One question at a time.
 * answer is called from the loop, or never where the bus is lost. -ENOTCONN: there is no such bus. */
int tdm_dbus_ask_stops(struct tdm_dbus *bus, const char *unit, void (*answer)(bool stops, void *userdata),
                       void *userdata);

/* Sleep, as systemd-logind announces it on the system's bus. Tried again, less and less often, where there is none. */
struct tdm_logind;
struct tdm_logind_callbacks {
        void (*sleeping)(void *userdata); /* soon: it waits for tdm_logind_may_sleep(), but not for long */
        void (*awake)(void *userdata);
};
int tdm_logind_new(struct tdm_logind **ret, struct tdm_loop *loop, const struct tdm_logind_callbacks *callbacks,
                   void *userdata);
void tdm_logind_may_sleep(struct tdm_logind *logind);
void tdm_logind_destroy(struct tdm_logind *logind); /* NULL is fine */

/* Takes no new jobs, and gives the name up when those of the bus have ended. */
void tdm_dbus_set_draining(struct tdm_dbus *bus);
/* Gives the name up whatever still runs. */
void tdm_dbus_finish(struct tdm_dbus *bus);
/* The default model may be another one. */
void tdm_dbus_on_default_changed(struct tdm_dbus *bus);
/* Everything that was said has left, pipes included. */
bool tdm_dbus_is_drained(const struct tdm_dbus *bus);
/* Cancels its jobs. */
void tdm_dbus_destroy(struct tdm_dbus *bus);
void tdm_dbus_destroyp(struct tdm_dbus **bus);

#endif
