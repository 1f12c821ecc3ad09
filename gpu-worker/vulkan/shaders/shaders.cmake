# Every shader: its name, its source, and what compiles it.
#   build  the glslc of this machine, whenever the source changes
#   kept   compile.py, by hand, with one pinned compiler; compiled/NAME.spv is in the tree. These need cooperative
#          matrices, which the glslc of Debian 12 does not know.
#   test   as build, and for tests alone: units-emulated.glsl in place of the device's matrix units
# What may follow are macros that it is compiled with.
# compile.py reads these rows too.
set(TANDEM_SHADERS
  "embed               weights/embed.comp               build"
  "repack              weights/repack.comp              build"
  "repack-subblock     weights/repack-subblock.comp     build"
  "bound               weights/bound.comp               build"
  "norm                norm/norm.comp                   build"
  "norm-unchained      norm/norm.comp                   build  -DUNCHAINED"
  "side                norm/side.comp                   build"
  "streams             norm/streams.comp                build"
  "matvec              matmul/matvec.comp               build"
  "matvec-subblock     matmul/matvec-subblock.comp      build"
  "matvec-gelu         matmul/matvec-gelu.comp          build"
  "matvec-unchained           matmul/matvec.comp            build  -DUNCHAINED"
  "matvec-subblock-unchained  matmul/matvec-subblock.comp   build  -DUNCHAINED"
  "matvec-gelu-unchained      matmul/matvec-gelu.comp       build  -DUNCHAINED"
  "matmul-int8         matmul/matmul-int8.comp          kept"
  "matmul-int8-wide    matmul/matmul-int8-wide.comp     kept"
  "matmul-int8-any     matmul/matmul-int8-any.comp      kept"
  "matmul-int8-any-subblock  matmul/matmul-int8-any.comp  kept  -DSUBBLOCK"
  "matvec-f16          matmul/matvec-f16.comp           kept"
  "matvec-f16-rows     matmul/matvec-f16.comp           kept   -DSEVERAL_ROWS"
  "matmul-f16          matmul/matmul-f16.comp           kept"
  "matmul-f16-wide     matmul/matmul-f16-wide.comp      kept"
  "matvec-f16-subblock       matmul/matvec-f16.comp        kept   -DSUBBLOCK"
  "matvec-f16-rows-subblock  matmul/matvec-f16.comp        kept   -DSUBBLOCK -DSEVERAL_ROWS"
  "matmul-f16-subblock       matmul/matmul-f16.comp        kept   -DSUBBLOCK"
  "matmul-f16-wide-subblock  matmul/matmul-f16-wide.comp   kept   -DSUBBLOCK"
  "matvec-f16-experts                matmul/matvec-f16.comp        kept   -DEXPERTS"
  "matmul-f16-experts                matmul/matmul-f16.comp        kept   -DEXPERTS"
  "matmul-f16-wide-experts           matmul/matmul-f16-wide.comp   kept   -DEXPERTS"
  "matvec-f16-subblock-experts       matmul/matvec-f16.comp        kept   -DEXPERTS -DSUBBLOCK"
  "matmul-f16-subblock-experts       matmul/matmul-f16.comp        kept   -DEXPERTS -DSUBBLOCK"
  "matmul-f16-wide-subblock-experts  matmul/matmul-f16-wide.comp   kept   -DEXPERTS -DSUBBLOCK"
  "matmul-int8-any-emulated           matmul/matmul-int8-any.comp   test   -DEMULATED"
  "matmul-int8-any-subblock-emulated  matmul/matmul-int8-any.comp   test   -DEMULATED -DSUBBLOCK"
  "matvec-f16-emulated       matmul/matvec-f16.comp        test   -DEMULATED -DSEVERAL_ROWS"
  "matmul-f16-emulated       matmul/matmul-f16.comp        test   -DEMULATED"
  "matmul-f16-wide-emulated  matmul/matmul-f16-wide.comp   test   -DEMULATED"
  "matvec-f16-subblock-emulated       matmul/matvec-f16.comp        test   -DEMULATED -DSUBBLOCK -DSEVERAL_ROWS"
  "matmul-f16-subblock-emulated       matmul/matmul-f16.comp        test   -DEMULATED -DSUBBLOCK"
  "matmul-f16-wide-subblock-emulated  matmul/matmul-f16-wide.comp   test   -DEMULATED -DSUBBLOCK"
  "matvec-f16-experts-emulated                matmul/matvec-f16.comp        test   -DEMULATED -DEXPERTS"
  "matmul-f16-experts-emulated                matmul/matmul-f16.comp        test   -DEMULATED -DEXPERTS"
  "matmul-f16-wide-experts-emulated           matmul/matmul-f16-wide.comp   test   -DEMULATED -DEXPERTS"
  "matvec-f16-subblock-experts-emulated       matmul/matvec-f16.comp        test   -DEMULATED -DEXPERTS -DSUBBLOCK"
  "matmul-f16-subblock-experts-emulated       matmul/matmul-f16.comp        test   -DEMULATED -DEXPERTS -DSUBBLOCK"
  "matmul-f16-wide-subblock-experts-emulated  matmul/matmul-f16-wide.comp   test   -DEMULATED -DEXPERTS -DSUBBLOCK"
  "rotate              attention/rotate.comp            build"
  "attend              attention/attend.comp            build"
  "attend-unchained    attention/attend.comp            build  -DUNCHAINED"
  "attend-f16          attention/attend-f16.comp        kept"
  "attend-f16-wide     attention/attend-f16-wide.comp   kept"
  "merge               attention/merge.comp             build"
  "gelu                ffn/gelu.comp                    build"
  "choose              experts/choose.comp              build"
  "router              experts/router.comp              build"
  "group               experts/group.comp               build"
  "matvec-experts      experts/matvec-experts.comp      build"
  "router-unchained            experts/router.comp           build  -DUNCHAINED"
  "matvec-experts-unchained    experts/matvec-experts.comp   build  -DUNCHAINED"
  "sum-experts         experts/sum-experts.comp         build"
  "logits              sampling/logits.comp             build"
  "gather              sampling/gather.comp             build")

# What shaders include.
set(TANDEM_SHADER_HEADERS
  attention/attend-f16.glsl attention/merge.glsl attention/rotate.glsl
  common/acts.glsl common/common.glsl common/f16-experts.glsl common/f16-subblock.glsl
  common/f16.glsl common/fragments-subblock.glsl
  common/fragments.glsl common/panels.glsl common/shared.h common/shared-experts.h common/shared-norm.h
  common/shared-side.h common/shared-registers.h common/shared-streams.h common/shared-tiles.h
  common/subblock-halves.glsl common/subblock-value.glsl common/subblock.glsl common/sum.glsl common/units-any.glsl
  common/units-emulated.glsl common/units.glsl
  ffn/activate.glsl ffn/gelu.glsl
  matmul/matvec.glsl)
