/* Pictures of a prompt: their places, their ids, where a prompt may be cut, and what a job may not ask of them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/jobs/job.h"

#define WIDTH 2u

static const float rows[16][WIDTH] = { { 1, 2 }, { 3, 4 }, { 5, 6 } };

static const struct tdm_job_picture good[] = {
        { .first = 2, .n_rows = 3, .rows = rows[0], .hash = { 1 } },
        { .first = 5, .n_rows = 1, .rows = rows[3], .hash = { 2 } },
        { .first = 9, .n_rows = 4, .rows = rows[4], .hash = { 1 } },
};

static int init(struct tdm_job_pictures *ret, const struct tdm_job_picture *pictures, size_t n, uint32_t *ids,
                struct tdm_error *err)
{
        return tdm_job_pictures_init(ret, pictures, n, WIDTH, ids, 16, NULL, err);
}

/* A picture's rows have ids of its hash: the same wherever it stands, and no two rows or pictures have the same. */
static void test_ids(void **state)
{
        uint32_t ids[16] = { 0 };
        struct tdm_job_pictures p;
        struct tdm_error err;

        assert_int_equal(init(&p, good, 3, ids, &err), 0);
        for (uint32_t i = 0; i < 16; i++)
                assert_int_equal(tdm_job_pictures_at(&p, i) != NULL, (ids[i] & TDM_PICTURE_ID) != 0);
        assert_memory_equal(ids + 2, ids + 9, 3 * sizeof(*ids)); /* one hash */
        for (uint32_t i = 2; i < 6; i++)
                for (uint32_t k = 2; k < i; k++)
                        assert_int_not_equal(ids[i], ids[k]);
        assert_memory_equal(p.items[0].rows, rows[0], 3 * sizeof(rows[0]));
        assert_ptr_not_equal(p.items[0].rows, rows[0]);
        tdm_job_pictures_deinit(&p);
        assert_int_equal(p.n, 0);
}

static void test_cuts(void **state)
{
        uint32_t ids[16] = { 0 };
        struct tdm_job_pictures p, none = { 0 };
        struct tdm_error err;

        assert_int_equal(init(&p, good, 3, ids, &err), 0);
        for (uint32_t i = 0; i <= 16; i++) {
                assert_int_equal(tdm_job_pictures_may_cut(&p, i), !(i == 3 || i == 4 || (i > 9 && i < 13)));
                assert_true(tdm_job_pictures_may_cut(&none, i));
        }
        assert_int_equal(tdm_job_pictures_fit(&none, 0, 7, 0), 7);
        assert_int_equal(tdm_job_pictures_fit(&p, 0, 2, 0), 2); /* before all */
        assert_int_equal(tdm_job_pictures_fit(&p, 0, 4, 9), 2);
        assert_int_equal(tdm_job_pictures_fit(&p, 0, 5, 9), 5);
        assert_int_equal(tdm_job_pictures_fit(&p, 0, 6, 1), 5); /* the second is one too many */
        assert_int_equal(tdm_job_pictures_fit(&p, 2, 2, 9), 0); /* it begins with one that is longer */
        assert_int_equal(tdm_job_pictures_fit(&p, 5, 7, 9), 4);
        assert_int_equal(tdm_job_pictures_fit(&p, 9, 4, 1), 4);
        assert_int_equal(tdm_job_pictures_fit(&p, 13, 3, 0), 3); /* behind all */
        tdm_job_pictures_deinit(&p);
}

static void refuse(const struct tdm_job_picture *pictures, size_t n, const char *why)
{
        uint32_t ids[16] = { 0 };
        struct tdm_job_pictures p;
        struct tdm_error err;

        assert_int_equal(init(&p, pictures, n, ids, &err), TDM_E_BAD_REQUEST);
        if (!strstr(err.message, why))
                fail_msg("%s", err.message);
        for (uint32_t i = 0; i < 16; i++)
                assert_int_equal(ids[i], 0);
}

static void test_refused(void **state)
{
        static struct tdm_job_picture many[TDM_MAX_JOB_PICTURES + 1];
        float bad[2][WIDTH] = { { 1, 2 }, { 3, INFINITY } };
        struct tdm_job_picture p[2] = { good[0], good[1] };

        refuse(many, TDM_ARRAY_SIZE(many), "65 pictures; at most 64 are taken");
        p[1].first = 4;
        refuse(p, 2, "picture 1 has 1 rows from position 4");
        p[1] = good[1];
        p[1].n_rows = 12;
        refuse(p, 2, "picture 1 has 12 rows from position 5");
        p[1].first = p[1].n_rows = UINT32_MAX;
        refuse(p, 2, "picture 1 has");
        p[1] = good[1];
        p[1].n_rows = 0;
        refuse(p, 2, "picture 1 has 0 rows");
        p[0] = (struct tdm_job_picture){ .first = 1, .n_rows = 2, .rows = bad[0] };
        refuse(p, 1, "row 1 of picture 0 has a number that is none");
}

/* Pictures go with ids that a model continues, and with nothing else. */
static void test_jobs(void **state)
{
        const uint32_t ids[16] = { 2 };
        struct tdm_job_params params = { .kind = TDM_JOB_SCORE,
                                         .ids = ids,
                                         .n_ids = 16,
                                         .pictures = good,
                                         .n_pictures = 3,
                                         .picture_width = WIDTH };
        struct tdm_job *job;
        struct tdm_error err;

        assert_int_equal(tdm_job_new(&job, &params, &err), TDM_E_BAD_REQUEST);
        assert_non_null(strstr(err.message, "pictures belong to a prompt"));
        params.kind = TDM_JOB_GENERATE;
        params.options.repeat_penalty = 1;
        assert_int_equal(tdm_job_new(&job, &params, &err), 0);
        assert_int_equal(job->ids[0], 2);
        assert_int_equal(job->ids[2], tdm_job_picture_id(good[0].hash, 0));
        tdm_job_unref(job);
}

/* Rows of pictures count for whom the job is of, whether they come with it or are made of files. */
static void test_charged(void **state)
{
        const uint64_t bytes = 8 * WIDTH * sizeof(float); /* of the rows of `good` */
        struct tdm_resource_limit limits[TDM_N_RESOURCES];
        struct tdm_accounts *accounts;
        struct tdm_account *account;
        struct tdm_job_pictures p, more = { 0 };
        uint32_t ids[16] = { 0 };
        struct tdm_error err;

        for (unsigned i = 0; i < TDM_N_RESOURCES; i++)
                limits[i] = (struct tdm_resource_limit){ .capacity = 1 << 20, .share_percent = 100 };
        limits[TDM_RESOURCE_WAITING_BYTES].capacity = 2 * bytes;
        assert_int_equal(tdm_accounts_new(&accounts, limits), 0);
        account = tdm_accounts_get(accounts, 1000);
        assert_non_null(account);
        assert_int_equal(tdm_job_pictures_init(&p, good, 3, WIDTH, ids, 16, account, &err), 0);
        assert_int_equal(account->used[TDM_RESOURCE_WAITING_BYTES], bytes);
        assert_int_not_equal(tdm_job_pictures_reserve(&more, bytes + 1, account, &err), 0);
        assert_int_equal(account->used[TDM_RESOURCE_WAITING_BYTES], bytes);
        assert_int_equal(tdm_job_pictures_reserve(&more, bytes, account, &err), 0);
        assert_int_equal(account->used[TDM_RESOURCE_WAITING_BYTES], 2 * bytes);
        tdm_job_pictures_deinit(&p);
        assert_int_equal(account->used[TDM_RESOURCE_WAITING_BYTES], bytes);
        memset(ids, 0, sizeof(ids));
        assert_int_equal(tdm_account_charge(account, TDM_RESOURCE_WAITING_BYTES, 1, &err), 0);
        assert_int_not_equal(tdm_job_pictures_init(&p, good, 3, WIDTH, ids, 16, account, &err), 0);
        assert_int_equal(ids[2], 0);
        tdm_account_release(account, TDM_RESOURCE_WAITING_BYTES, 1);
        tdm_job_pictures_deinit(&more);
        assert_int_equal(account->used[TDM_RESOURCE_WAITING_BYTES], 0);
        tdm_account_unref(account);
        tdm_accounts_destroy(accounts);
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(test_ids), cmocka_unit_test(test_cuts),
                                            cmocka_unit_test(test_refused), cmocka_unit_test(test_jobs),
                                            cmocka_unit_test(test_charged) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
