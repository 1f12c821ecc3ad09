/* Writes the emulated NPU's set of programs into a directory: an xclbin, instruction files and the manifest, in the
 * form in which a real set is installed. Run by the build; nothing of it is installed.
 *
 * Shapes: each product of a Gemma 3 attention block (fused q, k, v; output) as it is, so that a block takes two
 * submissions, in 1, 8, 64 and 256 rows; and a general one of 256 x 256 for models of other sizes. bf16 takes a weight
 * matrix as it lies (columns), int8 in AIE2's tiles, int4 in its blocks.
 *
 * With --attention the set also has whole attention blocks over the paged cache, for the two shipped models. With
 * --partition its xclbin has what XRT of an NPU asks for beyond 2.13: a partition of columns with the image of its
 * compute unit. The emulated kernel driver (tests/npu-kernel/) runs such a set. With --strix the set also says that it
 * is for a Strix.
 *
 * usage: make-npu-programs [--attention] [--partition|--strix] DIRECTORY */
#include <assert.h>
#if __has_include(<xrt/xclbin.h>)
#include <xrt/xclbin.h>
#else
#include <xrt/detail/xclbin.h>
#endif

#include "common/test-write-file.h"
#include "npu-worker/emulated/program.h"

struct shape {
        const char *name;
        uint32_t k, n;
};

static const struct shape shapes[] = {
        { "sprout-qkv", 128, 256 },       { "sprout-out", 128, 128 },       { "tale-qkv", 256, 384 },
        { "general", 256, 256 }, /* tale's output too */
        { "gemma3-270m-qkv", 640, 1536 }, { "gemma3-270m-out", 1024, 640 }, { "gemma3-1b-qkv", 1152, 1536 },
        { "gemma3-1b-out", 1024, 1152 },  { "gemma3-4b-qkv", 2560, 4096 },  { "gemma3-4b-out", 2048, 2560 },
        { "gemma3-12b-qkv", 3840, 8192 }, { "gemma3-12b-out", 4096, 3840 }, { "gemma3-27b-qkv", 5376, 8192 },
        { "gemma3-27b-out", 4096, 5376 },
};
static const uint32_t row_counts[] = { 1, 8, 64, 256 };
static const struct {
        const char *name;
        uint32_t d_model, n_heads, n_kv_heads, head_dim, pages;
} blocks[] = { { "sprout-block", 128, 2, 1, 64, 1024 }, { "tale-block", 256, 4, 1, 64, 1024 } };
static const uint32_t block_rows[] = { 1, 8, 64 };

static _Noreturn void fail(const char *what, const char *path)
{
        fprintf(stderr, "make-npu-programs: %s %s: %s\n", what, path, strerror(errno));
        exit(1);
}

/* ---- xclbin ---- */

static const char xml[] =
        "<?xml version=\"1.0\"?><project name=\"npu\"><platform vendor=\"xilinx\"><device name=\"npu\">"
        "<core name=\"OCL_REGION_0\" target=\"hw\" type=\"clc_region\">"
        "<kernel name=\"MLIR_AIE\" language=\"c\" type=\"dpu\" vlnv=\"\" preferredWorkGroupSizeMultiple=\"0\" "
        "workGroupSize=\"1\" "
        "interrupt=\"true\">"
        "<port name=\"M_AXI\" mode=\"master\" range=\"0xFFFFFFFF\" dataWidth=\"64\" portType=\"addressable\" "
        "base=\"0x0\"/>"
        "<port name=\"S_AXI\" mode=\"slave\" range=\"0x1000\" dataWidth=\"32\" portType=\"addressable\" base=\"0x0\"/>"
#define ARGUMENT(name, kind, id, port, size, offset, type)                                                             \
        "<arg name=\"" name "\" addressQualifier=\"" kind "\" id=\"" id "\" port=\"" port "\" size=\"" size            \
        "\" offset=\"" offset "\" hostOffset=\"0x0\" hostSize=\"" size "\" type=\"" type "\"/>"
        ARGUMENT("opcode", "0", "0", "S_AXI", "0x8", "0x00", "uint64_t") ARGUMENT(
                "instructions", "1", "1", "M_AXI", "0x8", "0x08",
                "char *") ARGUMENT("words", "0", "2", "S_AXI", "0x4", "0x10",
                                   "uint32_t") ARGUMENT("a", "1", "3", "M_AXI", "0x8", "0x18",
                                                        "void *") ARGUMENT("b", "1", "4", "M_AXI", "0x8", "0x20",
                                                                           "void *") ARGUMENT("c", "1", "5", "M_AXI",
                                                                                              "0x8", "0x28", "void *")
                ARGUMENT("d", "1", "6", "M_AXI", "0x8", "0x30", "void *") ARGUMENT(
                        "e", "1", "7", "M_AXI", "0x8", "0x38",
                        "void *") "<instance name=\"MLIRAIE\"><addrRemap base=\"0x0\" port=\"S_AXI\"/></instance>"
                                  "</kernel></core></device></platform></project>";

#define DPU_KERNEL 0x901u /* its number, as mlir-aie gives it */
#define AIE_PARTITION_KIND 32u
#define PDI_MAGIC UINT32_C(0x49445054) /* what tests/npu-kernel/firmware.c takes for an image */

struct part { /* array_offset */
        uint32_t n, offset;
};
/* The section AIE_PARTITION, whose structs 2.13's xclbin.h does not have (aie_partition, aie_pdi, cdo_group). */
struct partition {
        struct {
                uint8_t version, pad0[3];
                uint32_t name, operations_per_cycle;
                uint8_t pad1[4];
                uint64_t fingerprint, pre_post_fingerprint;
                uint16_t column_width;
                uint8_t pad2[6];
                struct part start_columns;
                uint8_t reserved0[72];
                struct part pdis;
                uint32_t commit;
                uint8_t reserved1[52];
        } head;
        struct {
                uint8_t uuid[16];
                struct part image, groups;
                uint8_t reserved[64];
        } pdi;
        struct {
                uint32_t name;
                uint8_t type, pad[3];
                uint64_t pdi_id;
                struct part kernels, pre_groups;
                uint8_t reserved[64];
        } group;
        uint64_t kernel;
        uint16_t start_columns[2], pad;
        char name[10]; /* and an empty one behind it */
        uint32_t image[16];
};

#define AT(field) (uint32_t) offsetof(struct partition, field)

static const struct partition partition = {
        .head = { .name = AT(name),
                  .operations_per_cycle = 2048,
                  .column_width = 4,
                  .start_columns = { 2, AT(start_columns) },
                  .pdis = { 1, AT(pdi) },
                  .commit = AT(name) + 9 },
        .pdi = { .uuid = { 1 }, .image = { sizeof(partition.image), AT(image) }, .groups = { 1, AT(group) } },
        .group = { .name = AT(name), .type = 1, .pdi_id = 1, .kernels = { 1, AT(kernel) } },
        .kernel = DPU_KERNEL,
        .start_columns = { 0, 4 },
        .name = "emulated",
        .image = { PDI_MAGIC, 1 },
};
static_assert(sizeof(partition.head) == 184 && sizeof(partition.pdi) == 96 && sizeof(partition.group) == 96,
              "XRT's layout");

/* The kernel's entry of an NPU also says which image it needs. */
static size_t xml_for(bool partitioned, char *ret, size_t size)
{
        const char *port = strstr(xml, "<port ");

        return (size_t)snprintf(
                ret, size, "%.*s%s%s", (int)(port - xml), xml,
                partitioned ? "<extended-data subtype=\"DPU\" functional=\"0\" dpu_kernel_id=\"0x901\"/>" : "", port);
}

static void write_xclbin(const char *directory, bool partitioned)
{
        char text[8192];
        size_t text_bytes = xml_for(partitioned, text, sizeof(text));
        /* xclbin.h's own structs end in an array of one. */
        static struct {
                int32_t n, pad;
                struct mem_data data[2];
        } memory = { .n = 2 };
        static struct {
                int32_t n, pad;
                struct ip_data data[1];
        } ip = { .n = 1 };
        static const struct {
                int32_t n;
                struct connection c[6];
        } connections = { /* argument, ip, memory group */
                          .n = 6,
                          .c = { { 1, 0, 1 }, { 3, 0, 0 }, { 4, 0, 0 }, { 5, 0, 0 }, { 6, 0, 0 }, { 7, 0, 0 } }
        };
        const struct {
                uint32_t kind;
                const char *name;
                const void *p;
                size_t size;
        } sections[] = {
                { EMBEDDED_METADATA, "xml", text, text_bytes },
                { MEM_TOPOLOGY, "memory", &memory, sizeof(memory) },
                { ASK_GROUP_TOPOLOGY, "memory groups", &memory, sizeof(memory) },
                { IP_LAYOUT, "ip", &ip, sizeof(ip) },
                { CONNECTIVITY, "connections", &connections, sizeof(connections) },
                { ASK_GROUP_CONNECTIVITY, "group conn.", &connections, sizeof(connections) },
                { AIE_PARTITION_KIND, "partition", &partition, sizeof(partition) },
        };
        const uint32_t n = TDM_ARRAY_SIZE(sections) - !partitioned;
        size_t head = offsetof(struct axlf, m_sections),
               at = TDM_ALIGN_UP(head + n * sizeof(struct axlf_section_header), (size_t)8);
        static uint8_t file[65536];
        struct axlf *axlf = (struct axlf *)file;

        for (unsigned i = 0; i < 2; i++) {
                memory.data[i].m_type = MEM_DRAM;
                memory.data[i].m_used = 1;
                memory.data[i].m_base_address = 0x4000000;
                memory.data[i].m_size = i == 0 ? 0x10000000 : 0xc000;
                memcpy(memory.data[i].m_tag, i == 0 ? "HOST" : "SRAM", 5);
        }
        ip.data[0].m_type = IP_KERNEL;
        if (partitioned) {
                ip.data[0].m_type = IP_PS_KERNEL;
                ip.data[0].properties = 1u | DPU_KERNEL << 16; /* a DPU's, and which */
                ip.data[0].m_base_address = UINT64_MAX;
        }
        memcpy(ip.data[0].m_name, "MLIR_AIE:MLIRAIE", 17);

        memcpy(axlf->m_magic, "xclbin2", 8);
        axlf->m_signature_length = -1;
        memset(axlf->reserved, 0xff, sizeof(axlf->reserved));
        axlf->m_header.m_versionMajor = 2;
        axlf->m_header.m_versionMinor = 13;
        axlf->m_header.m_numSections = n;
        memcpy(axlf->m_header.m_platformVBNV, "tandem-emulated", 16);
        for (unsigned i = 0; i < 16; i++)
                axlf->m_header.uuid[i] = (uint8_t)(0xa0 + i);
        for (uint32_t i = 0; i < n; i++) {
                struct axlf_section_header *section = &((struct axlf_section_header *)(file + head))[i];

                section->m_sectionKind = sections[i].kind;
                snprintf(section->m_sectionName, sizeof(section->m_sectionName), "%s", sections[i].name);
                section->m_sectionOffset = at;
                section->m_sectionSize = sections[i].size;
                if (at + sections[i].size > sizeof(file))
                        fail("no room in", "the xclbin");
                memcpy(file + at, sections[i].p, sections[i].size);
                at = TDM_ALIGN_UP(at + sections[i].size, (size_t)8);
        }
        axlf->m_header.m_length = at;
        test_write_file(directory, "tandem.xclbin", file, at);
}

/* ---- programs ---- */

static void add_program(const char *directory, FILE *manifest, const struct shape *s, uint32_t m,
                        enum tdm_emulated_type type)
{
        static const struct {
                const char *name, *b, *order;
                enum tdm_emulated_layout layout;
        } types[] = {
                [TDM_EMULATED_BF16] = { "bf16", "columns", "lanes8", TDM_EMULATED_COLUMNS },
                [TDM_EMULATED_INT8] = { "int8", "tiles 8x8", "exact", TDM_EMULATED_TILES },
                [TDM_EMULATED_INT4] = { "int4", "blocks 16x8", "blocks32", TDM_EMULATED_BLOCKS },
                [TDM_EMULATED_INT4A16] = { "int4a16", "blocks 16x8", "blocks32", TDM_EMULATED_BLOCKS },
        };
        const struct tdm_emulated_program program = {
                .magic = TDM_EMULATED_MAGIC,
                .op = TDM_EMULATED_OP_GEMM,
                .type = type,
                .b_layout = types[type].layout,
                .m = m,
                .k = s->k,
                .n = s->n,
        };
        char name[64], file[80];

        snprintf(name, sizeof(name), "%s-%s-%u", s->name, types[type].name, m);
        snprintf(file, sizeof(file), "%s.insts", name);
        test_write_file(directory, file, &program, TDM_EMULATED_GEMM_WORDS * sizeof(uint32_t));
        fprintf(manifest,
                "\n[%s]\nop = %s\nshape = %ux%ux%u\ntype = %s\na = rows\nb = %s\nc = rows\norder = %s\ncolumns = 4\n"
                "instructions = %s\narguments = a b c\n",
                name, m == 1 ? "gemv" : "gemm", m, s->k, s->n, types[type].name, types[type].b, types[type].order,
                file);
}

static void add_block(const char *directory, FILE *manifest, size_t which, uint32_t m)
{
        const struct tdm_emulated_program program = {
                .magic = TDM_EMULATED_MAGIC,
                .op = TDM_EMULATED_OP_ATTENTION,
                .type = TDM_EMULATED_BF16,
                .b_layout = TDM_EMULATED_COLUMNS,
                .m = m,
                .k = blocks[which].d_model,
                .n = (blocks[which].n_heads + 2 * blocks[which].n_kv_heads) * blocks[which].head_dim,
                .n_heads = blocks[which].n_heads,
                .n_kv_heads = blocks[which].n_kv_heads,
                .head_dim = blocks[which].head_dim,
                .pages = blocks[which].pages,
        };
        char name[64], file[80];

        snprintf(name, sizeof(name), "%s-%u", blocks[which].name, m);
        snprintf(file, sizeof(file), "%s.insts", name);
        test_write_file(directory, file, &program, sizeof(program));
        fprintf(manifest,
                "\n[%s]\nop = attention\nshape = %ux%ux%u\ntype = bf16\na = rows\nb = columns\nc = rows\n"
                "order = lanes8\ncolumns = 4\ninstructions = %s\narguments = a b c d e\nheads = %ux%ux%u\npages = %u\n",
                name, m, program.k, program.n, file, program.n_heads, program.n_kv_heads, program.head_dim,
                program.pages);
}

int main(int argc, char **argv)
{
        bool attention = false, partitioned = false, strix = false;
        char path[4096];
        FILE *manifest;

        for (; argc > 2; argc--, argv++)
                if (strcmp(argv[1], "--attention") == 0)
                        attention = true;
                else if (strcmp(argv[1], "--partition") == 0)
                        partitioned = true;
                else if (strcmp(argv[1], "--strix") == 0)
                        partitioned = strix = true;
                else
                        break;
        if (argc != 2) {
                fprintf(stderr, "usage: make-npu-programs [--attention] [--partition|--strix] DIRECTORY\n");
                return 2;
        }
        write_xclbin(argv[1], partitioned);
        snprintf(path, sizeof(path), "%s/manifest", argv[1]);
        manifest = fopen(path, "we");
        if (!manifest)
                fail("cannot write", path);
        fprintf(manifest,
                "# Programs of the emulated NPU, written by the build (make-programs.c).\n[set]\nformat = 1\n"
                "generation = %s\nxclbin = tandem.xclbin\nkernel = MLIR_AIE\n",
                strix ? "strix" : "emulated");
        for (size_t i = 0; i < TDM_ARRAY_SIZE(shapes); i++)
                for (size_t r = 0; r < TDM_ARRAY_SIZE(row_counts); r++)
                        for (enum tdm_emulated_type type = TDM_EMULATED_BF16; type <= TDM_EMULATED_INT4A16; type++)
                                add_program(argv[1], manifest, &shapes[i], row_counts[r], type);
        for (size_t i = 0; attention && i < TDM_ARRAY_SIZE(blocks); i++)
                for (size_t r = 0; r < TDM_ARRAY_SIZE(block_rows); r++)
                        add_block(argv[1], manifest, i, block_rows[r]);
        if (fclose(manifest) != 0)
                fail("cannot write", path);
        return 0;
}
