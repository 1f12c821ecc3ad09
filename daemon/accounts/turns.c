/* Turns; the rule is in the header.
 *
 * The number of the loop's turn grows at the end of each turn in which something was handled: an account's time is of
 * the turn whose number it has. A queue is served from a timer, so that descriptors, other timers and deferred work get
 * theirs between two accounts. */
#include "daemon/accounts/turns.h"

#include <assert.h>

struct tdm_turns {
        struct tdm_source *end;   /* deferred: the loop's turn is over */
        struct tdm_source *timer; /* the next account with a queue is due */
        struct tdm_list queue;    /* of accounts that have waiters, by turn_node */
        struct tdm_account *served;
        uint64_t number;
        bool timer_is_armed;
};

static int on_end(struct tdm_source *source, void *userdata)
{
        struct tdm_turns *turns = userdata;

        turns->number++;
        return 0;
}

static void turn_serve(struct tdm_turns *turns, struct tdm_account *account)
{
        turns->served = account;
        account->turn = turns->number;
        account->turn_ns = 0;
        while (!tdm_list_empty(&account->waiters) && tdm_turns_may(turns, account)) {
                struct tdm_waiter *waiter = tdm_list_entry(account->waiters.next, struct tdm_waiter, node);

                tdm_list_remove(&waiter->node);
                waiter->go_on(waiter);
        }
        turns->served = NULL;
}

static int on_turns_timer(struct tdm_source *source, uint64_t now_ns, void *userdata)
{
        _cleanup_(tdm_account_unrefp) struct tdm_account *account = NULL;
        struct tdm_turns *turns = userdata;
        uint64_t begin = tdm_now_ns(), end;

        turns->timer_is_armed = false;
        if (tdm_list_empty(&turns->queue))
                return 0;
        account = tdm_account_ref(tdm_list_entry(turns->queue.next, struct tdm_account, turn_node));
        tdm_list_remove(&account->turn_node);
        turn_serve(turns, account);
        if (!tdm_list_empty(&account->waiters) && tdm_list_empty(&account->turn_node))
                tdm_list_append(&turns->queue, &account->turn_node);
        if (!tdm_list_empty(&turns->queue)) {
                end = tdm_now_ns();
                tdm_source_arm(turns->timer, end + (end - begin));
                turns->timer_is_armed = true;
        }
        return 0;
}

int tdm_turns_new(struct tdm_turns **ret, struct tdm_loop *loop)
{
        _cleanup_(tdm_turns_destroyp) struct tdm_turns *turns = calloc(1, sizeof(*turns));
        int r;

        if (!turns)
                return -ENOMEM;
        tdm_list_init(&turns->queue);
        turns->number = 1; /* accounts begin with 0 */
        r = tdm_loop_add_defer(loop, on_end, turns, &turns->end);
        if (r == 0)
                r = tdm_loop_add_timer(loop, on_turns_timer, turns, &turns->timer);
        if (r < 0)
                return r;
        *ret = steal_ptr(&turns);
        return 0;
}

void tdm_turns_destroy(struct tdm_turns *turns)
{
        struct tdm_account *account;

        if (!turns)
                return;
        /* Accounts whose waiters were forgotten may still be in line. */
        tdm_list_for_each(account, &turns->queue, struct tdm_account, turn_node) {
                assert(tdm_list_empty(&account->waiters));
                tdm_list_remove(&account->turn_node);
        }
        tdm_source_destroyp(&turns->end);
        tdm_source_destroyp(&turns->timer);
        free(turns);
}

void tdm_turns_destroyp(struct tdm_turns **turns)
{
        tdm_turns_destroy(*turns);
        *turns = NULL;
}

void tdm_waiter_init(struct tdm_waiter *waiter, void (*go_on)(struct tdm_waiter *waiter))
{
        tdm_list_init(&waiter->node);
        waiter->go_on = go_on;
}

bool tdm_turns_may(const struct tdm_turns *turns, const struct tdm_account *account)
{
        /* A message that comes now is served behind those that wait. */
        if (!tdm_list_empty(&account->waiters) && account != turns->served)
                return false;
        return account->turn != turns->number || account->turn_ns < TDM_TURN_NS;
}

void tdm_turns_took(struct tdm_turns *turns, struct tdm_account *account, uint64_t ns)
{
        if (account->turn != turns->number) {
                account->turn = turns->number;
                account->turn_ns = 0;
        }
        account->turn_ns += ns;
        tdm_source_schedule(turns->end);
}

void tdm_turns_wait(struct tdm_turns *turns, struct tdm_account *account, struct tdm_waiter *waiter)
{
        assert(tdm_list_empty(&waiter->node));
        tdm_list_append(&account->waiters, &waiter->node);
        if (account == turns->served)
                return;
        if (tdm_list_empty(&account->turn_node))
                tdm_list_append(&turns->queue, &account->turn_node);
        if (!turns->timer_is_armed) {
                tdm_source_arm(turns->timer, tdm_now_ns() + account->turn_ns);
                turns->timer_is_armed = true;
        }
}

void tdm_turns_forget(struct tdm_waiter *waiter)
{
        tdm_list_remove(&waiter->node);
}
