/* A gateway that stood still gives up no peer and no client for it; one that is silent is given up all the same. */
#include "http-gateway/handoff.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <sys/socket.h>
#include <unistd.h>
#include "http-gateway/exchange.h"

#include <cmocka.h>

#define SECOND TDM_NSEC_PER_SEC

struct world {
        struct config config;
        struct peer_address address;
        struct server server;
        struct peer client;
        struct exchange *x;
        struct generation *g;
        int listener;
        uint64_t now_ns;
        unsigned n_told;
        char why[128];
};

static struct world *world;

static void told(struct choice *c, const struct takeover_line *line, const char *why)
{
        assert_null(line);
        world->n_told++;
        snprintf(world->why, sizeof(world->why), "%s", why);
}

/* The peer's socket takes connections, and nobody reads from them. */
static void listen_silently(struct world *w)
{
        struct sockaddr_in *at = (struct sockaddr_in *)&w->address.address;

        at->sin_family = AF_INET;
        at->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        w->address.address_size = sizeof(*at);
        w->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(w->listener >= 0);
        assert_int_equal(bind(w->listener, (struct sockaddr *)at, sizeof(*at)), 0);
        assert_int_equal(listen(w->listener, 4), 0);
        assert_int_equal(getsockname(w->listener, (struct sockaddr *)at, &w->address.address_size), 0);
}

static int setup(void **state)
{
        struct tdm_error err = { 0 };

        world = calloc(1, sizeof(*world));
        assert_non_null(world);
        listen_silently(world);
        world->config.peers = &world->address;
        world->config.n_peers = 1;
        world->config.request_timeout_s = 60;
        world->server.config = &world->config;
        owners_init(&world->server.owners);
        tdm_list_init(&world->server.peers);
        tdm_list_init(&world->server.exchanges);
        assert_int_equal(tdm_loop_new(&world->server.loop, &err), 0);
        tdm_list_append(&world->server.peers, &world->client.node);
        world->x = exchange_new(&world->server, &world->client, NULL);
        assert_non_null(world->x);
        world->x->owner = owners_get_network(&world->server.owners, NULL);
        world->x->ran = true;
        world->g = calloc(1, sizeof(*world->g) + sizeof(world->g->choices[0]));
        assert_non_null(world->g);
        world->g->request = calloc(1, sizeof(*world->g->request));
        assert_non_null(world->g->request);
        world->g->x = world->x;
        world->g->n_choices = 1;
        world->g->elsewhere = true;
        world->g->choices[0].generation = world->g;
        world->x->generation = world->g;
        assert_int_equal(
                handoff_new(&world->g->choices[0].handoff, world->x, &world->g->choices[0], json_object(), told), 0);
        handoff_next(world->g->choices[0].handoff, "");
        world->now_ns = world->server.ticked_ns = tdm_now_ns();
        return 0;
}

static int teardown(void **state)
{
        world->x->generation = NULL;
        handoff_free(world->g->choices[0].handoff);
        free(world->g->request);
        free(world->g);
        world->x->peer = NULL;
        exchange_free(world->x);
        tdm_loop_destroy(world->server.loop);
        close(world->listener);
        free(world);
        return 0;
}

/* What a tick does, so long after the one before. */
static void tick(uint64_t after_ns)
{
        world->now_ns += after_ns;
        server_forgive(&world->server, world->now_ns);
        generation_tick(world->g, world->now_ns);
}

static void tick_each_second(unsigned n)
{
        while (n-- > 0)
                tick(SECOND);
}

static void connecting(void **state)
{
        tick(3600 * SECOND);
        assert_int_equal(world->n_told, 0);
        tick_each_second(3);
        assert_int_equal(world->n_told, 1);
        assert_string_equal(world->why, "it does not answer");
}

static void reading(void **state)
{
        int fd = accept4(world->listener, NULL, NULL, SOCK_CLOEXEC);
        char byte;

        assert_true(fd >= 0);
        while (recv(fd, &byte, 1, MSG_DONTWAIT) != 1)
                assert_int_equal(tdm_loop_turn(world->server.loop, SECOND), 0);
        world->now_ns = world->server.ticked_ns = tdm_now_ns();
        tick(100 * SECOND);
        tick_each_second(10);
        assert_int_equal(world->n_told, 0);
        tick_each_second(10);
        assert_int_equal(world->n_told, 1);
        assert_string_equal(world->why, "it says nothing any more");
        close(fd);
}

/* The same for clients: of a request that is not whole, of an answer that is not read, between requests. */
static void clients(void **state)
{
        struct exchange *x = world->x;
        uint64_t before_ns = world->now_ns;

        x->begun_ns = x->moved_ns = world->client.since_ns = before_ns;
        x->ran = false;
        tick(100 * SECOND);
        assert_int_equal(world->now_ns - x->begun_ns, SECOND);
        assert_int_equal(world->now_ns - x->moved_ns, SECOND);
        assert_int_equal(world->now_ns - world->client.since_ns, SECOND);
        x->ran = true;
        before_ns = x->begun_ns;
        tick(100 * SECOND);
        assert_int_equal(x->begun_ns, before_ns);  /* what the client waited is told as it was */
        x->moved_ns = world->now_ns + 99 * SECOND; /* it moved just before the late tick */
        tick(100 * SECOND);
        assert_int_equal(x->moved_ns, world->now_ns);
        tick(SECOND);
        assert_int_equal(world->now_ns - x->moved_ns, SECOND);
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test_setup_teardown(connecting, setup, teardown),
                cmocka_unit_test_setup_teardown(reading, setup, teardown),
                cmocka_unit_test_setup_teardown(clients, setup, teardown),
        };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
