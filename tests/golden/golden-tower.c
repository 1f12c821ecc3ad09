/* Runs a vision tower on RGB bytes and writes every stage: for each a line "NAME ROWS COLS" and the numbers as floats.
 *
 * usage: golden-tower MMPROJ.gguf PICTURE.rgb WIDTH HEIGHT [--act f32|i8|i16] [--kv f32|f16] [--threads N]
 *                     [--projected-only] */
#include <fcntl.h>

#include "common/sigbus.h"
#include "engine/vision/tower.h"

struct stages {
        bool projected_only;
        uint32_t n_patches;
};

static void write_stage(void *userdata, enum tdm_tower_stage stage, uint32_t layer, uint32_t first, const float *rows,
                        uint32_t n_rows, uint32_t cols, size_t stride)
{
        static const char *const names[] = {
                "patch_rows", "embedded", "layer", "tower", "pooled", "normed", "projected"
        };
        const struct stages *stages = userdata;
        uint32_t n_all = stage == TDM_TOWER_PATCHES ? stages->n_patches : n_rows;
        char number[16] = "";

        if (stages->projected_only && stage != TDM_TOWER_PROJECTED)
                return;
        if (stage == TDM_TOWER_LAYER)
                snprintf(number, sizeof(number), "%u", layer);
        if (first == 0)
                printf("%s%s %u %u\n", names[stage], number, n_all, cols);
        for (uint32_t i = 0; i < n_rows; i++)
                fwrite(rows + i * stride, sizeof(float), cols, stdout);
}

static void *read_bytes(const char *path, size_t size)
{
        FILE *f = fopen(path, "re");
        void *bytes = malloc(size + 1);

        if (!f || !bytes || fread(bytes, 1, size + 1, f) != size) {
                fprintf(stderr, "%s does not have %zu bytes\n", path, size);
                exit(1);
        }
        fclose(f);
        return bytes;
}

static const char *argument(int argc, char **argv, const char *name, const char *otherwise)
{
        for (int i = 5; i + 1 < argc; i++)
                if (strcmp(argv[i], name) == 0)
                        return argv[i + 1];
        return otherwise;
}

int main(int argc, char **argv)
{
        struct tdm_tower_options options = { .watch = write_stage };
        struct stages stages = { 0 };
        struct tdm_image_size size;
        struct tdm_gguf *gguf = NULL;
        struct tdm_tower *tower = NULL;
        struct tdm_pool *pool = NULL;
        struct tdm_projector projector;
        struct tdm_error err = { 0 };
        const struct tdm_kernels *kernels = tdm_kernels_choose(&err);
        const char *act;
        uint8_t *rgb;
        float *out = NULL;
        int fd, r;

        if (argc < 5 || !kernels)
                return 2;
        act = argument(argc, argv, "--act", "f32");
        options.act = strcmp(act, "i8") == 0 ? TDM_ACT_I8 : strcmp(act, "i16") == 0 ? TDM_ACT_I16 : TDM_ACT_F32;
        options.kv = strcmp(argument(argc, argv, "--kv", "f32"), "f16") == 0 ? TDM_KV_F16 : TDM_KV_F32;
        options.userdata = &stages;
        stages.projected_only = strcmp(argv[argc - 1], "--projected-only") == 0;
        size = (struct tdm_image_size){ .width = (uint32_t)atoi(argv[3]), .height = (uint32_t)atoi(argv[4]) };
        rgb = read_bytes(argv[2], (size_t)size.width * size.height * 3);
        fd = open(argv[1], O_RDONLY | O_CLOEXEC);
        r = fd < 0 ? -errno : tdm_sigbus_init();
        if (r == 0)
                r = tdm_pool_new(&pool, (unsigned)atoi(argument(argc, argv, "--threads", "2")), NULL);
        if (r == 0)
                r = tdm_gguf_open(&gguf, fd, argv[1], &err);
        if (r == 0)
                r = tdm_projector_describe(&projector, gguf, &err);
        if (r == 0)
                r = tdm_tower_new(&tower, gguf, kernels, pool, &options, &err);
        if (r == 0) {
                stages.n_patches = projector.grid * projector.grid;
                out = malloc((size_t)tdm_tower_n_rows(tower) * projector.n_out * sizeof(*out));
                r = out ? tdm_tower_run(tower, rgb, size, out, &err) : -ENOMEM;
        }
        if (r != 0)
                fprintf(stderr, "%s\n", err.message[0] ? err.message : strerror(-r));
        tdm_tower_destroy(tower);
        tdm_gguf_close(gguf);
        tdm_pool_destroy(pool);
        free(rgb);
        free(out);
        return r != 0 || fflush(stdout) != 0;
}
