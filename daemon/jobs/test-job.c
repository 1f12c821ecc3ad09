/* A job alone: prompts become ids, tokens become text, and every way to end. With the tokenizer of the small model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include "common/sigbus.h"
#include "daemon/jobs/job.h"
#include "engine/file/test-gguf-builder.h"

static struct tdm_tokenizer *tokenizer;
static struct tdm_chat *chat, *no_chat;
static struct tdm_hparams hp = { .n_ctx = 64 };

static struct tdm_job_params params(const char *text)
{
        return (struct tdm_job_params){ .text = text, .text_size = strlen(text) };
}

static struct tdm_job *make(const struct tdm_job_params *p)
{
        struct tdm_job *job;
        struct tdm_error err;

        assert_int_equal(tdm_job_new(&job, p, &err), 0);
        if (tdm_job_prepare(job, tokenizer, chat, &hp, &err) != 0)
                fail_msg("%s", err.message);
        return job;
}

/* Feeds the tokens of text; out gets what the client sees. */
static size_t feed(struct tdm_job *job, const char *text, char *out)
{
        uint32_t ids[512];
        ssize_t n = tdm_tokenizer_encode(tokenizer, text, strlen(text), 0, ids, 512);
        size_t size = 0;

        assert_true(n > 0 && n <= 512);
        for (ssize_t i = 0; i < n && !job->finished; i++) {
                struct tdm_job_token token;

                if (tdm_job_take_token(job, ids[i], -1, 1000 + (uint64_t)i, &token)) {
                        memcpy(out + size, token.text, token.size);
                        size += token.size;
                }
        }
        return size;
}

static void test_text(void **state)
{
        struct tdm_job_params p = params("Once upon a time");
        struct tdm_job *job = make(&p);
        char out[512];
        size_t n;

        assert_int_equal(job->prompt_tokens, 5);
        assert_int_equal(job->ids[0], tdm_tokenizer_bos(tokenizer));
        assert_int_equal(job->max_tokens, hp.n_ctx - 5);
        assert_null(job->prompt.text); /* not kept longer than needed */
        n = feed(job, " there was a fox.", out);
        assert_int_equal(n, strlen(" there was a fox."));
        assert_memory_equal(out, " there was a fox.", n);
        assert_false(job->finished);
        tdm_job_finish(job, TDM_JOB_END_CANCELLED, NULL);
        assert_int_equal(job->end, TDM_JOB_END_CANCELLED);
        tdm_job_finish(job, TDM_JOB_END_LENGTH, NULL); /* the first one counts */
        assert_int_equal(job->end, TDM_JOB_END_CANCELLED);
        tdm_job_unref(job);
}

static void test_special_only_in_raw_prompts(void **state)
{
        struct tdm_chat_message message = { TDM_CHAT_USER, "<end_of_turn>", 13 };
        struct tdm_job_params raw = params("<end_of_turn>"), score = raw, talk = raw;
        struct tdm_job *job = make(&raw);
        uint32_t special = job->ids[1], n_special = 0;

        assert_int_equal(job->prompt_tokens, 2);
        tdm_job_unref(job);
        score.kind = TDM_JOB_SCORE;
        job = make(&score);
        assert_true(job->prompt_tokens > 2);
        tdm_job_unref(job);
        talk.text_size = 0;
        talk.messages = &message;
        talk.n_messages = 1;
        job = make(&talk);
        for (uint32_t i = 0; i < job->n_ids; i++)
                n_special += job->ids[i] == special;
        assert_int_equal(n_special, 1); /* the template's own, not the user's */
        tdm_job_unref(job);
}

static void test_stop_across_tokens(void **state)
{
        struct tdm_stop_string stop = { "was a fo", 8 };
        struct tdm_job_params p = params("Once");
        struct tdm_job *job;
        char out[512];

        p.options.stop = &stop;
        p.options.n_stop = 1;
        job = make(&p);
        assert_int_equal(feed(job, " there was a fox.", out), 7);
        assert_memory_equal(out, " there ", 7);
        assert_true(job->finished);
        assert_int_equal(job->end, TDM_JOB_END_STOP);
        assert_int_equal(job->text.tail_size, 0);
        tdm_job_unref(job);
}

static void test_tail(void **state)
{
        struct tdm_stop_string stop = { "fox and", 7 };
        struct tdm_job_params p = params("Once");
        struct tdm_job *job;
        char out[512];
        size_t n;

        p.options.stop = &stop;
        p.options.n_stop = 1;
        job = make(&p);
        n = feed(job, " a fox", out); /* might become the stop string: held back */
        assert_int_equal(n, 3);
        tdm_job_finish(job, TDM_JOB_END_LENGTH, NULL);
        assert_int_equal(job->text.tail_size, 3);
        assert_memory_equal(job->text.tail, "fox", 3);
        tdm_job_unref(job);
}

static void test_half_a_character(void **state)
{
        struct tdm_job_params p = params("Once");
        struct tdm_job *job = make(&p);
        struct tdm_job_token token;
        uint32_t ids[16];
        ssize_t n = tdm_tokenizer_encode(tokenizer, "\xf0\x9f\xa6\x8a", 4, 0, ids, 16); /* four byte tokens */

        assert_int_equal(n, 4);
        for (int i = 0; i < 3; i++) {
                assert_true(tdm_job_take_token(job, ids[i], -1, 1, &token));
                assert_int_equal(token.size, 0);
        }
        tdm_job_finish(job, TDM_JOB_END_LENGTH, NULL);
        assert_true(job->text.tail_size >= 3); /* U+FFFD: what was held is shown as damaged, not lost in silence */
        assert_memory_equal(job->text.tail, "\xef\xbf\xbd", 3);
        tdm_job_unref(job);
}

static void test_ends(void **state)
{
        struct tdm_job_params p = params("Once");
        struct tdm_job_token token;
        struct tdm_job *job;
        char out[512];

        p.options.max_tokens = 2;
        job = make(&p);
        feed(job, " there was a fox.", out);
        assert_int_equal(job->generated, 2);
        assert_int_equal(job->end, TDM_JOB_END_LENGTH);
        tdm_job_unref(job);

        p.options.max_tokens = 100000; /* more than there is room for */
        job = make(&p);
        assert_int_equal(job->max_tokens, hp.n_ctx - job->prompt_tokens);
        assert_false(tdm_job_take_token(job, (uint32_t)tdm_tokenizer_eos(tokenizer), -1, 1, &token));
        assert_int_equal(job->end, TDM_JOB_END_STOP);
        assert_int_equal(job->generated, 0);
        tdm_job_unref(job);

        p.options.ignore_end = true;
        job = make(&p);
        assert_true(tdm_job_take_token(job, (uint32_t)tdm_tokenizer_eos(tokenizer), -1, 1, &token));
        assert_false(job->finished);
        tdm_job_unref(job);
}

static int refusal(const struct tdm_job_params *p)
{
        struct tdm_error err = { 0 };
        struct tdm_job *job;
        int r = tdm_job_new(&job, p, &err);

        if (r == 0) {
                r = tdm_job_prepare(job, tokenizer, no_chat, &hp, &err);
                tdm_job_unref(job);
        }
        assert_true(r == 0 || err.message[0]);
        return r;
}

static void test_refusals(void **state)
{
        static char big[64 * TDM_PROMPT_BYTES_PER_TOKEN + 1];
        uint32_t ids[100] = { 0 };
        struct tdm_chat_message message = { TDM_CHAT_ASSISTANT, "x", 1 };
        struct tdm_job_params p = params("");

        assert_int_equal(refusal(&p), TDM_E_BAD_REQUEST); /* empty */
        p = params("x");
        p.ids = ids;
        p.n_ids = 1;
        assert_int_equal(refusal(&p), TDM_E_BAD_REQUEST); /* twice */
        p = params("");
        p.ids = ids;
        p.n_ids = 64;
        assert_int_equal(refusal(&p), TDM_E_TOO_LONG); /* no room for an answer */
        p.kind = TDM_JOB_SCORE;
        assert_int_equal(refusal(&p), 0);
        p.n_ids = 65;
        assert_int_equal(refusal(&p), TDM_E_TOO_LONG);
        ids[3] = 1u << 30;
        p.n_ids = 10;
        assert_int_equal(refusal(&p), TDM_E_BAD_REQUEST);
        memset(big, 'x', sizeof(big));
        p = params("");
        p.text = big;
        p.text_size = sizeof(big);
        assert_int_equal(refusal(&p), TDM_E_TOO_LONG);
        p = params("");
        p.messages = &message;
        p.n_messages = 1;
        assert_int_equal(refusal(&p), TDM_E_UNSUPPORTED); /* no template */
        p = params("x");
        p.options.temperature = -1;
        assert_int_equal(refusal(&p), TDM_E_BAD_REQUEST);
        p = params("x");
        p.options.repeat_last = TDM_HISTORY_MAX + 1;
        assert_int_equal(refusal(&p), TDM_E_BAD_REQUEST);
}

/* A text encoded on a thread gives what it gives at once. */
static void test_encoded_beside(void **state)
{
        struct tdm_job_params p = params("Once upon a time there was a fox");
        struct tdm_job *now = make(&p), *later;
        struct tdm_error err;

        assert_int_equal(tdm_job_new(&later, &p, &err), 0);
        tdm_job_encode(later, tokenizer, chat, &hp, &later->prompt.from_text);
        later->prompt.encoded = true;
        assert_int_equal(tdm_job_prepare(later, tokenizer, chat, &hp, &err), 0);
        assert_int_equal(later->n_ids, now->n_ids);
        assert_memory_equal(later->ids, now->ids, now->n_ids * sizeof(uint32_t));
        tdm_job_unref(now);
        tdm_job_unref(later);

        assert_int_equal(tdm_job_new(&later, &p, &err), 0); /* encoded, and then nobody wants it */
        tdm_job_encode(later, tokenizer, chat, &hp, &later->prompt.from_text);
        tdm_job_unref(later);
}

/* Of a file without a template. */
static int no_chat_make(void)
{
        struct gguf_builder b = { 0 };
        struct tdm_gguf *gguf;
        int fd, r;

        build_header(&b, 0, 0);
        fd = build_fd(b.data, b.size);
        build_reset(&b);
        if (tdm_gguf_open(&gguf, fd, "small", NULL) != 0)
                return -1;
        close(fd);
        r = tdm_chat_new(&no_chat, gguf, tokenizer, 0);
        tdm_gguf_close(gguf);
        return r;
}

/* What an earlier process left is its own again; what no job comes to is refused, and nothing of it is taken. */
static void test_restored_end(void **state)
{
        static const struct {
                size_t at;
                uint8_t byte;
        } wrong[] = {
                { offsetof(struct tdm_job_ended, end), TDM_JOB_END_ERROR + 1 },
                { offsetof(struct tdm_job_ended, end) + 3, 0x80 },
                { offsetof(struct tdm_job_ended, incomplete), 2 },
                { offsetof(struct tdm_job_ended, progress.told_accepted), 0xff },
                { offsetof(struct tdm_job_ended, stats.degraded), 2 },
                { offsetof(struct tdm_job_ended, stats.unguessed), TDM_N_UNGUESSED },
        };
        struct tdm_job_params p = params("Once");
        struct tdm_job *job = make(&p), *earlier = make(&p);
        struct tdm_job_ended ended, bad;
        struct tdm_error why;

        tdm_error_set(&why, TDM_E_DEADLINE, "too late");
        earlier->stats.degraded = true;
        tdm_job_finish(earlier, TDM_JOB_END_ERROR, &why);
        tdm_job_read_end(earlier, &ended);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(wrong); i++) {
                bad = ended;
                memcpy((char *)&bad + wrong[i].at, &wrong[i].byte, 1);
                assert_int_equal(tdm_job_restore_end(job, &bad), -EINVAL);
                assert_false(job->finished);
        }
        bad = ended;
        memset(bad.error.message, 'x', sizeof(bad.error.message));
        assert_int_equal(tdm_job_restore_end(job, &bad), -EINVAL);
        bad = ended;
        memset(bad.stats.numerics_id, 'x', sizeof(bad.stats.numerics_id));
        assert_int_equal(tdm_job_restore_end(job, &bad), -EINVAL);
        assert_false(job->finished);
        assert_int_equal(tdm_job_restore_end(job, &ended), 0);
        assert_true(job->finished && job->stats.degraded);
        assert_int_equal(job->end, TDM_JOB_END_ERROR);
        assert_int_equal(job->error.code, TDM_E_DEADLINE);
        assert_string_equal(job->error.message, "too late");
        tdm_job_unref(job);
        tdm_job_unref(earlier);
}

static int set_up(void **state)
{
        struct tdm_gguf *gguf;
        int fd = open("models/sprout.gguf", O_RDONLY | O_CLOEXEC);

        if (fd < 0 || tdm_sigbus_init() < 0 || tdm_gguf_open(&gguf, fd, "sprout", NULL) != 0)
                return -1;
        close(fd);
        if (tdm_tokenizer_new(&tokenizer, gguf, NULL) != 0)
                return -1;
        if (tdm_chat_new(&chat, gguf, tokenizer, 0) < 0 || no_chat_make() < 0)
                return -1;
        tdm_gguf_close(gguf);
        hp.n_vocab = tdm_tokenizer_n_vocab(tokenizer);
        return 0;
}

static int tear_down(void **state)
{
        tdm_chat_destroy(chat);
        tdm_chat_destroy(no_chat);
        tdm_tokenizer_destroy(tokenizer);
        return 0;
}

int main(void)
{
        const struct CMUnitTest tests[] = {
                cmocka_unit_test(test_text),
                cmocka_unit_test(test_special_only_in_raw_prompts),
                cmocka_unit_test(test_stop_across_tokens),
                cmocka_unit_test(test_tail),
                cmocka_unit_test(test_half_a_character),
                cmocka_unit_test(test_ends),
                cmocka_unit_test(test_refusals),
                cmocka_unit_test(test_encoded_beside),
                cmocka_unit_test(test_restored_end),
        };
        return cmocka_run_group_tests(tests, set_up, tear_down);
}
