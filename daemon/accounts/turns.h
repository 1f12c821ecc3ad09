/* Turns: for how long the event loop handles what one account sends before it does anything else.
 *
 * In one turn of the loop an account has TDM_TURN_NS. What comes after that waits in a queue of the account: the parts
 * of the daemon that read from clients ask before each piece of work, tell what it took, and wait in line when the
 * answer is no. Accounts with a queue take turns: each time, one of them has TDM_TURN_NS, and then the loop is left
 * alone for as long as that took. So others wait for TDM_TURN_NS and one piece of work, and all queues together have at
 * most half of the loop's time. An account that stays below its time never waits. Nothing is dropped.
 *
 * Loop thread only. */
#ifndef TDM_DAEMON_ACCOUNTS_TURNS_H
#define TDM_DAEMON_ACCOUNTS_TURNS_H

#include "common/loop.h"
#include "daemon/accounts/accounts.h"

#define TDM_TURN_NS (5 * TDM_NSEC_PER_MSEC)

struct tdm_turns;

/* One who waits in an account's queue. Embedded in what waits. */
struct tdm_waiter {
        struct tdm_list node;
        void (*go_on)(struct tdm_waiter *waiter); /* its turn has come; it may wait again, and may be gone afterwards */
};

int tdm_turns_new(struct tdm_turns **ret, struct tdm_loop *loop);
void tdm_turns_destroy(struct tdm_turns *turns); /* nobody may wait */
void tdm_turns_destroyp(struct tdm_turns **turns);

void tdm_waiter_init(struct tdm_waiter *waiter, void (*go_on)(struct tdm_waiter *waiter));
/* May something of this account be handled now? */
bool tdm_turns_may(const struct tdm_turns *turns, const struct tdm_account *account);
/* How long it took. */
void tdm_turns_took(struct tdm_turns *turns, struct tdm_account *account, uint64_t ns);
/* After a no: go_on() is called later, from the loop. The account must stay referenced until then. */
void tdm_turns_wait(struct tdm_turns *turns, struct tdm_account *account, struct tdm_waiter *waiter);
/* It waits no longer. Fine for one that does not wait. */
void tdm_turns_forget(struct tdm_waiter *waiter);

#endif
