/* A queue to the thread and a queue back, under one mutex; the loop is woken by an eventfd. Nothing is shared beyond
 * that: a task belongs to the thread from add() until done(). Caps are the callers' business. */
#include "common/background.h"

#include <pthread.h>

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

struct tdm_background {
        struct tdm_source *wake;
        pthread_t thread;
        bool started;

        pthread_mutex_t lock; /* of all below */
        pthread_cond_t more;
        struct queue to_do, finished;
        bool ending;
};

static void put(struct queue *q, struct piece *p)
{
        p->next = NULL;
        if (q->tail)
                q->tail->next = p;
        else
                q->head = p;
        q->tail = p;
}

static struct piece *take(struct queue *q)
{
        struct piece *p = q->head;

        if (p) {
                q->head = p->next;
                if (!q->head)
                        q->tail = NULL;
        }
        return p;
}

static void *work(void *userdata)
{
        struct tdm_background *b = userdata;

        pthread_mutex_lock(&b->lock);
        for (;;) {
                struct piece *p;

                while (!b->to_do.head && !b->ending)
                        pthread_cond_wait(&b->more, &b->lock);
                if (b->ending)
                        break;
                p = take(&b->to_do);
                pthread_mutex_unlock(&b->lock);
                p->run(p->task);
                p->ran = true;
                pthread_mutex_lock(&b->lock);
                put(&b->finished, p);
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
                p = take(q);
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
        struct tdm_background *b = calloc(1, sizeof(*b));
        int r;

        if (!b)
                return -ENOMEM;
        r = tdm_loop_add_wake(loop, on_wake, b, &b->wake);
        if (r < 0) {
                free(b);
                return r;
        }
        pthread_mutex_init(&b->lock, NULL);
        pthread_cond_init(&b->more, NULL);
        *ret = b;
        return 0;
}

void tdm_background_destroy(struct tdm_background *b)
{
        if (!b)
                return;
        if (b->started) {
                pthread_mutex_lock(&b->lock);
                b->ending = true;
                pthread_cond_signal(&b->more);
                pthread_mutex_unlock(&b->lock);
                pthread_join(b->thread, NULL);
        }
        deliver(b, &b->finished);
        deliver(b, &b->to_do);
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

int tdm_background_add(struct tdm_background *b, void (*run)(void *task), void (*done)(void *task, bool ran),
                       void *task)
{
        struct piece *p = calloc(1, sizeof(*p));

        if (!p)
                return -ENOMEM;
        *p = (struct piece){ .run = run, .done = done, .task = task };
        if (!b->started) {
                int r = pthread_create(&b->thread, NULL, work, b);

                if (r != 0) {
                        free(p);
                        return -r;
                }
                b->started = true;
        }
        pthread_mutex_lock(&b->lock);
        put(&b->to_do, p);
        pthread_cond_signal(&b->more);
        pthread_mutex_unlock(&b->lock);
        return 0;
}
