/* A queue to the threads for each user, and one queue back, under one mutex; the loop is woken by an eventfd. Nothing
 * is shared beyond that: a task belongs to its thread from add() until done(). */
#include "common/background.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>
#include "common/list.h"

struct piece {
        struct piece *next;
        void (*run)(void *task);
        void (*done)(void *task, bool ran);
        void *task;
        bool ran;
};

struct queue {
        struct piece *head, *tail;
};

/* Threads of a pool are nicer than the loop, which answers everybody. */
#define POOL_NICENESS 5

/* A user with tasks that wait or run. */
struct user {
        struct tdm_list node; /* the one whose turn is next comes first */
        uint64_t user;
        struct queue to_do;
        bool busy; /* one of its tasks runs */
};

struct tdm_background {
        struct tdm_source *wake;
        unsigned n_threads; /* at most */
        pthread_t threads[TDM_BACKGROUND_MAX_THREADS];
        unsigned n_started; /* loop only */

        pthread_mutex_t lock; /* of all below */
        pthread_cond_t more;
        struct tdm_list users;
        unsigned n_waiting, n_idle; /* tasks; threads */
        struct queue finished;
        bool ending;
};

static void piece_put(struct queue *q, struct piece *p)
{
        p->next = NULL;
        if (q->tail)
                q->tail->next = p;
        else
                q->head = p;
        q->tail = p;
}

static struct piece *piece_take(struct queue *q)
{
        struct piece *p = q->head;

        if (p) {
                q->head = p->next;
                if (!q->head)
                        q->tail = NULL;
        }
        return p;
}

static struct user *find_user(struct tdm_background *b, uint64_t user)
{
        struct user *u;

        tdm_list_for_each(u, &b->users, struct user, node) {
                if (u->user == user)
                        return u;
        }
        return NULL;
}

static struct user *next_user(struct tdm_background *b)
{
        struct user *u;

        tdm_list_for_each(u, &b->users, struct user, node) {
                if (!u->busy && u->to_do.head)
                        return u;
        }
        return NULL;
}

static void *work(void *userdata)
{
        struct tdm_background *b = userdata;

        if (b->n_threads > 1)
                (void)setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, 0) + POOL_NICENESS);
        pthread_mutex_lock(&b->lock);
        for (;;) {
                struct user *u;
                struct piece *p;

                while (!b->ending && !(u = next_user(b))) {
                        b->n_idle++;
                        pthread_cond_wait(&b->more, &b->lock);
                        b->n_idle--;
                }
                if (b->ending)
                        break;
                p = piece_take(&u->to_do);
                b->n_waiting--;
                u->busy = true;
                tdm_list_remove(&u->node); /* behind all the others */
                tdm_list_append(&b->users, &u->node);
                pthread_mutex_unlock(&b->lock);
                p->run(p->task);
                p->ran = true;
                pthread_mutex_lock(&b->lock);
                u->busy = false;
                if (!u->to_do.head) {
                        tdm_list_remove(&u->node);
                        free(u);
                }
                piece_put(&b->finished, p);
                tdm_loop_wake(b->wake);
        }
        pthread_mutex_unlock(&b->lock);
        return NULL;
}

static void deliver(struct tdm_background *b, struct queue *q)
{
        for (;;) {
                struct piece *p;

                pthread_mutex_lock(&b->lock);
                p = piece_take(q);
                pthread_mutex_unlock(&b->lock);
                if (!p)
                        return;
                p->done(p->task, p->ran);
                free(p);
        }
}

static int on_wake(struct tdm_source *source, void *userdata)
{
        struct tdm_background *b = userdata;

        deliver(b, &b->finished);
        return 0;
}

int tdm_background_new(struct tdm_background **ret, struct tdm_loop *loop)
{
        return tdm_background_new_pool(ret, loop, 1);
}

int tdm_background_new_pool(struct tdm_background **ret, struct tdm_loop *loop, unsigned n_threads)
{
        struct tdm_background *b = calloc(1, sizeof(*b));
        int r;

        if (!b)
                return -ENOMEM;
        r = tdm_loop_add_wake(loop, on_wake, b, &b->wake);
        if (r < 0) {
                free(b);
                return r;
        }
        b->n_threads = TDM_MIN(TDM_MAX(n_threads, 1u), TDM_BACKGROUND_MAX_THREADS);
        tdm_list_init(&b->users);
        pthread_mutex_init(&b->lock, NULL);
        pthread_cond_init(&b->more, NULL);
        *ret = b;
        return 0;
}

void tdm_background_destroy(struct tdm_background *b)
{
        struct user *u;

        if (!b)
                return;
        pthread_mutex_lock(&b->lock);
        b->ending = true;
        pthread_cond_broadcast(&b->more);
        pthread_mutex_unlock(&b->lock);
        for (unsigned i = 0; i < b->n_started; i++)
                pthread_join(b->threads[i], NULL);
        deliver(b, &b->finished);
        tdm_list_for_each(u, &b->users, struct user, node) {
                deliver(b, &u->to_do);
                tdm_list_remove(&u->node);
                free(u);
        }
        tdm_source_destroyp(&b->wake);
        pthread_cond_destroy(&b->more);
        pthread_mutex_destroy(&b->lock);
        free(b);
}

void tdm_background_destroyp(struct tdm_background **b)
{
        tdm_background_destroy(*b);
        *b = NULL;
}

/* A task of this user, added now, could run before another task ends, and no idle thread is left for it. */
static bool needs_thread(struct tdm_background *b, uint64_t user)
{
        unsigned n_ready = 0;
        struct user *u;

        tdm_list_for_each(u, &b->users, struct user, node) {
                if (u->user == user)
                        return false; /* it comes after another task of this user, and that one has a thread */
                n_ready += !u->busy;
        }
        return b->n_idle <= n_ready;
}

/* Another thread when none is idle. One that cannot start is an error only where there is none at all. */
static int start_thread(struct tdm_background *b, uint64_t user)
{
        bool needed;
        int r;

        pthread_mutex_lock(&b->lock);
        needed = needs_thread(b, user);
        pthread_mutex_unlock(&b->lock);
        if (b->n_started >= b->n_threads || !needed)
                return 0;
        r = pthread_create(&b->threads[b->n_started], NULL, work, b);
        if (r == 0)
                b->n_started++;
        return b->n_started > 0 ? 0 : -r;
}

int tdm_background_add_for(struct tdm_background *b, uint64_t user, void (*run)(void *task),
                           void (*done)(void *task, bool ran), void *task)
{
        struct piece *p = calloc(1, sizeof(*p));
        struct user *u, *new_user = calloc(1, sizeof(*new_user));
        int r = p && new_user ? start_thread(b, user) : -ENOMEM;

        if (r == 0) {
                *p = (struct piece){ .run = run, .done = done, .task = task };
                pthread_mutex_lock(&b->lock);
                if (b->n_waiting >= TDM_BACKGROUND_MAX_TASKS)
                        r = -ENOBUFS;
                else {
                        u = find_user(b, user);
                        if (!u) {
                                u = steal_ptr(&new_user);
                                u->user = user;
                                tdm_list_append(&b->users, &u->node);
                        }
                        piece_put(&u->to_do, steal_ptr(&p));
                        b->n_waiting++;
                        pthread_cond_signal(&b->more);
                }
                pthread_mutex_unlock(&b->lock);
        }
        free(new_user);
        free(p);
        return r;
}

int tdm_background_add(struct tdm_background *b, void (*run)(void *task), void (*done)(void *task, bool ran),
                       void *task)
{
        return tdm_background_add_for(b, 0, run, done, task);
}
