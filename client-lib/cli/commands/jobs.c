/* tandem jobs: what runs and waits. */
#include "client-lib/cli/cli.h"
#include "client-lib/cli/table.h"

#include <inttypes.h>

struct jobs_options {
        bool json;
};

extern const struct command command_jobs;

static const struct table_column columns[] = {
        { "JOB", .right = true },
        { "STATE", .state = true },
        { "MODEL", .shrinks_to = 8 },
        { "USER", .shrinks_to = 6 },
        { "PRIORITY", .leaves = 2 },
        { "PROMPT", .right = true },
        { "TOKENS", .right = true },
        { "AGE", .right = true, .leaves = 1 },
        { "RECOVERIES", .right = true, .leaves = 3 },
};

static void print_jobs(const struct tandem_job_list *list)
{
        struct table table = { .columns = columns, .n_columns = TDM_ARRAY_SIZE(columns) };
        _cleanup_(buf_freep) struct buf text = { 0 };

        if (list->n_jobs == 0) {
                out_puts("no jobs\n");
                return;
        }
        for (size_t i = 0; i < list->n_jobs; i++) {
                const struct tandem_job_info *j = list->jobs[i];
                char id[24], read[32], made[32], age[32], user[128], recoveries[16];

                snprintf(id, sizeof(id), "%" PRIu64, j->job);
                snprintf(read, sizeof(read), "%" PRIu32 "/%" PRIu32, j->prefilled_tokens, j->prompt_tokens);
                snprintf(made, sizeof(made), "%" PRIu32 "/%" PRIu32, j->generated_tokens, j->max_tokens);
                format_duration(age, sizeof(age), j->age_s);
                snprintf(user, sizeof(user), "%s%s%s", user_name(j->uid), j->label[0] ? "/" : "", term_safe(j->label));
                snprintf(recoveries, sizeof(recoveries), "%" PRIu32, j->recoveries);
                table_add(&table,
                          (const char *const[]){ id, tandem_job_state_name(j->state), term_safe(j->model), user,
                                                 tandem_priority_name(j->priority), read, made, age, recoveries });
        }
        table_write(&table, out_columns(), &text);
        table_free(&table);
        if (text.failed)
                complain("no memory for the list");
        else
                out_write(text.data, text.size);
}

static int run_jobs_list(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct jobs_options options = { 0 };
        struct tandem_job_list *answer;
        struct tandem_error err;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_jobs, argc, argv, &options, NULL, 0, &n, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_list_jobs(tandem, &answer, &err) != TANDEM_OK)
                return complain_error(&err);
        if (options.json) {
                buf_puts(&b, "{");
                json_jobs(&b, answer);
                buf_puts(&b, "}");
                status = print_json(&b);
        } else {
                print_jobs(answer);
                status = out_finish();
        }
        tandem_job_list_free(answer);
        return status;
}

static const struct arg args[] = { ARG_JSON(struct jobs_options, json,
                                            "one JSON object, with the field names of tandem.proto") };

const struct command command_jobs = {
        .name = "jobs",
        .summary = "the jobs that run or wait",
        .usage = "[--json]",
        .about = "Lists your jobs that run or wait, with the tokens read and made so far. Root sees the jobs "
                 "of every user.",
        COMMAND_ARGS(args),
        .run = run_jobs_list,
};
