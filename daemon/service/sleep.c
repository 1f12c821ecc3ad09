#include "daemon/service/sleep.h"

#include "common/log.h"
#include "daemon/faces/dbus/dbus.h"

/* logind waits for 5 s by default. A step takes milliseconds; the fleet's watch finds one that hangs. */
#define LIMIT_NS (4 * TDM_NSEC_PER_SEC)
#define LOOK_NS (5 * TDM_NSEC_PER_MSEC)

struct tdm_sleep {
        struct tdm_scheduler *scheduler;
        struct tdm_fleet *fleet;
        struct tdm_logind *logind;
        struct tdm_source *look; /* timer */
        uint64_t since_ns;
};

static int on_look(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        struct tdm_scheduler_stats stats;
        struct tdm_sleep *s = userdata;

        tdm_scheduler_stats(s->scheduler, &stats);
        if (stats.n_in_flight > 0 && now_ns - s->since_ns < LIMIT_NS) {
                tdm_source_arm(source, now_ns + LOOK_NS);
                return 0;
        }
        if (stats.n_in_flight > 0)
                tdm_log_info("the machine may sleep, though steps still run: %u", stats.n_in_flight);
        else
                tdm_log_info("the machine may sleep: no step runs");
        tdm_logind_may_sleep(s->logind);
        return 0;
}

static void on_sleeping(void *userdata)
{
        struct tdm_sleep *s = userdata;

        s->since_ns = tdm_now_ns();
        tdm_scheduler_hold(s->scheduler, true);
        tdm_source_arm(s->look, s->since_ns + 1);
}

static void on_awake(void *userdata)
{
        struct tdm_sleep *s = userdata;

        tdm_source_arm(s->look, 0);
        for (unsigned i = 0; i < TDM_N_WORKERS; i++) {
                struct tdm_worker_status status;

                tdm_fleet_worker_status(s->fleet, i, &status);
                if (status.state != TDM_WORKER_OFF && strcmp(status.device, "host") != 0)
                        tdm_fleet_reopen(s->fleet, i, "the machine slept");
        }
        tdm_scheduler_hold(s->scheduler, false);
}

int tdm_sleep_new(struct tdm_sleep **ret, struct tdm_loop *loop, struct tdm_scheduler *scheduler,
                  struct tdm_fleet *fleet)
{
        static const struct tdm_logind_callbacks callbacks = { .sleeping = on_sleeping, .awake = on_awake };
        struct tdm_sleep *s = calloc(1, sizeof(*s));
        int r = s ? 0 : -ENOMEM;

        if (r == 0) {
                s->scheduler = scheduler;
                s->fleet = fleet;
                r = tdm_loop_add_timer(loop, on_look, s, &s->look);
        }
        if (r == 0)
                r = tdm_logind_new(&s->logind, loop, &callbacks, s);
        if (r < 0) {
                tdm_sleep_destroyp(&s);
                return r;
        }
        *ret = s;
        return 0;
}

void tdm_sleep_destroyp(struct tdm_sleep **sleep)
{
        if (!*sleep)
                return;
        tdm_logind_destroy((*sleep)->logind);
        tdm_source_destroyp(&(*sleep)->look);
        free(*sleep);
        *sleep = NULL;
}
