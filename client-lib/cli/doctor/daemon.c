/* The doctor asks the daemon what its workers do. */
#include "client-lib/cli/doctor/machine.h"

#include <inttypes.h>
#include <sys/stat.h>

#define SYSTEM_SOCKET "/run/tandem/socket"

/* Tells what the daemon says of a worker, unless the devices above say it already. */
static void tell_worker(struct doctor *d, const char *what, const struct tandem_worker *w)
{
        bool npu = strcmp(w->name, "npu") == 0, expected = (npu ? d->n_npus : d->n_gpus) == 0;

        if (strcmp(w->device, "host") == 0 && expected && strcmp(w->requested, "auto") == 0) {
                doctor_ok(d, what, "%s on the CPU, as there is no %s", w->state, npu ? "NPU" : "GPU");
                return;
        }
        doctor_ok(d, what, "%s%s%s%s%s", w->state, w->device[0] ? " on " : "",
                  strcmp(w->device, "host") == 0 ? "the CPU" : w->device, w->detail[0] ? ": " : "", w->detail);
        if (w->reason[0])
                doctor_note(d, what, "%s", w->reason);
}

/* Commands that work where this program is: a build folder has no units, and its programs are not in PATH. */
struct local {
        char daemon[4200]; /* "tandemd", or its path */
        bool has_unit;     /* installed, or linked from another prefix */
        bool has_service;  /* and these programs are those that it runs */
};

static void find_local(struct local *c)
{
        c->has_unit = access("/usr/lib/systemd/system/tandemd.socket", F_OK) == 0 ||
                      access("/etc/systemd/system/tandemd.socket", F_OK) == 0;
        c->has_service = c->has_unit;
        if (!cli_find_program("tandemd", c->daemon, sizeof(c->daemon)) || strncmp(c->daemon, "/usr/", 5) == 0)
                snprintf(c->daemon, sizeof(c->daemon), "tandemd");
        else
                c->has_service = false;
}

static void restart_command(const struct local *c, const struct tandem_status *status, char *to, size_t size)
{
        if (c->has_unit && strcmp(status->socket, SYSTEM_SOCKET) == 0)
                snprintf(to, size, "sudo systemctl restart tandemd");
        else
                snprintf(to, size, "kill %" PRIu64 "; %.200s --user &", status->pid, c->daemon);
}

/* False: no daemon said what its workers do. */
bool doctor_ask_daemon(struct doctor *d, struct cli *cli)
{
        struct local here;
        struct tandem *tandem;
        struct tandem_status *status;
        struct tandem_error err;
        char again[320];

        find_local(&here);
        if (tandem_connect(&tandem, cli->socket, &err) != TANDEM_OK) {
                snprintf(again, sizeof(again), "%s%.200s --user &%s",
                         here.has_service ? "sudo systemctl start tandemd.socket   (or, for yourself: " : "",
                         here.daemon, here.has_service ? ")" : "");
                doctor_problem(d, RANK_DAEMON, again, "daemon", "%s", err.message);
                return false;
        }
        if (tandem_get_status(tandem, &status, &err) != TANDEM_OK) {
                doctor_problem(d, RANK_DAEMON,
                               here.has_service ? "sudo systemctl restart tandemd" :
                                                  "end that tandemd (pkill -x tandemd) and start it anew",
                               "daemon", "%s", err.message);
                tandem_close(tandem);
                return false;
        }
        restart_command(&here, status, again, sizeof(again));
        doctor_ok(d, "daemon", "%s runs", status->version);
        for (size_t i = 0; i < status->n_workers; i++) {
                const struct tandem_worker *w = status->workers[i];
                char what[32], mend[512];

                snprintf(what, sizeof(what), "%.8s worker", w->name);
                if (strcmp(w->state, "quarantined") == 0) {
                        if (strncmp(w->last_exit, "device ", 7) == 0 && strcmp(w->requested, "auto") != 0)
                                snprintf(mend, sizeof(mend),
                                         "%.8s = auto in tandem.conf takes the CPU instead (man tandem.conf); then: %s",
                                         w->name, again);
                        else
                                snprintf(mend, sizeof(mend), "%s%.200s restart %.8s",
                                         strcmp(status->socket, SYSTEM_SOCKET) == 0 && geteuid() != 0 ? "sudo " : "",
                                         cli->program, w->name);
                        doctor_problem(d, RANK_WORKER, mend, what, "is quarantined after %u restarts: %s", w->restarts,
                                       name_users(w->last_exit));
                } else {
                        tell_worker(d, what, w);
                }
        }
        tandem_status_free(status);
        tandem_close(tandem);
        return true;
}
