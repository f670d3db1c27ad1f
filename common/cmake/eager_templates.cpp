// A plugin for GCC: `#pragma manyranks instantiate` instantiates, there and then, the templates that were used so far.
//
// GCC leaves them for the end of the file. In a precompiled header that means: for the end of every file that includes it, again and again.
// LibTorch's headers leave 6 s of them. With the pragma as the header's last line they are paid for once; the code made is the same.
// Clang needs no plugin: -fpch-instantiate-templates, which CMake sets by itself.
#include "gcc-plugin.h"
#include "plugin-version.h"
// (these want gcc-plugin.h first)
#include "c-family/c-pragma.h"
#include "cp/cp-tree.h"

int plugin_is_GPL_compatible;   // GCC looks for this name

static void instantiate(cpp_reader*) { instantiate_pending_templates(0); }

static void register_pragma(void*, void*) { c_register_pragma("manyranks", "instantiate", instantiate); }

int plugin_init(plugin_name_args* plugin, plugin_gcc_version* compiler) {
  if (!plugin_default_version_check(compiler, &gcc_version)) return 1;   // built for another GCC
  register_callback(plugin->base_name, PLUGIN_PRAGMAS, register_pragma, nullptr);
  return 0;
}
