/* See client-lib/cli/doctor.h. The parts look one after another, devices before what depends on them. The one thing
 * that matters first is written above them all. */
#include "client-lib/cli/doctor/machine.h"

static void say_what_runs(struct doctor *d)
{
        doctor_note(
                d, "npu worker", "%s",
                d->npu_ready ?
                        "computes on the NPU what has a program for its shape (docs/npu-kernels.md), where tandem-xrt "
                        "is installed; the rest on the CPU" :
                        "computes on the CPU: no NPU can be used");
        doctor_note(d, "gpu worker", "%s",
                    d->gpu_ready ? "computes on the GPU by Vulkan" : "computes on the CPU: no GPU can be used");
}

static void look_at_all(struct doctor *d, struct cli *cli, bool ask_daemon)
{
        doctor_look_at_cpu(d);
        doctor_look_at_memory(d);
        doctor_look_at_kernel(d);
        doctor_look_at_devices(d);
        doctor_look_at_gpu_use(d);
        doctor_look_at_groups(d);
        doctor_look_at_limits(d);
        doctor_look_at_power(d);
        if (!ask_daemon || !doctor_ask_daemon(d, cli))
                say_what_runs(d);
}

unsigned doctor_write(struct buf *to, struct cli *cli, const char *root, bool ask_daemon)
{
        struct doctor *d = calloc(1, sizeof(*d));
        _cleanup_(buf_freep) struct buf findings = { 0 };
        unsigned n_problems;

        if (!d) {
                to->failed = true;
                return 0;
        }
        d->to = &findings;
        d->root = root;
        look_at_all(d, cli, ask_daemon);
        if (d->first_rank)
                buf_printf(to, "%-18s %s\n%-18s %s\n\n", d->n_problems ? "FIRST" : "TIP", d->first, "", d->first_mend);
        if (findings.failed)
                to->failed = true;
        else if (findings.size)
                buf_add(to, findings.data, findings.size);
        n_problems = d->n_problems;
        free(d);
        return n_problems;
}
