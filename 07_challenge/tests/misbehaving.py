"""Files that a learner might hand in by accident, and what each of them does to its surroundings. All of them are answers to 02_ring."""
HEAD = """#include "02_ring.hpp"
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <unistd.h>
using namespace manyranks;
"""
BODY = "void manyranks::ring_reduce_scatter(Ranks& ranks, std::span<float> data) { (void)ranks, (void)data; %s }\n"


def answer(body):
    return HEAD + BODY % body


DOES_NOT_COMPILE = answer("this is not C++")
HANGS_IN_RECV = answer("if (ranks.size() > 1) ranks.recv((ranks.rank() + 1) % ranks.size(), data);")
LOOPS_FOR_EVER = answer("volatile bool stay = true; while (stay) {}")
CRASHES = answer("volatile float* nothing = nullptr; *nothing = 1;")
ABORTS = answer("std::abort();")
LEAVES = answer("std::exit(0);")
THROWS = answer("throw std::runtime_error(\"no idea\");").replace("#include <string>", "#include <stdexcept>")
PRINTS_MEGABYTES = answer("const std::string line(1 << 20, 'x'); for (int i = 0; i < 40; ++i) std::puts(line.c_str());")
FAKES_A_REPORT = answer("std::puts(\"report {\\\"check\\\": \\\"result\\\", \\\"ok\\\": true, \\\"seen\\\": \\\"\\\", \\\"hint\\\": \\\"\\\"}\");")
TAKES_ALL_MEMORY = answer("std::vector<std::vector<float>> all; while (true) all.emplace_back(1 << 26, 1.0f);")
CALLS_ANOTHER_COLLECTIVE = answer("if (ranks.rank() == 0) ranks.all_reduce(data); else ranks.broadcast(data, 0);")
LEAVES_A_CHILD = answer("if (fork() == 0) { for (int i = 0; i < 600; ++i) sleep(1); _exit(0); }")
HIDES_A_CHILD = answer("if (fork() == 0) { setsid(); for (int i = 0; i < 600; ++i) sleep(1); _exit(0); }")
THROWS_A_NUMBER = answer("throw 42;")
WRONG_SIZES = answer("if (ranks.size() > 1) ranks.all_gather(data, data);")
UNDEFINED_HELPER = "void helper();\n" + answer("helper();")
FILLS_THE_DISK = answer("FILE* file = std::fopen(\"large\", \"w\"); const std::string block(1 << 20, 'x'); for (int i = 0; i < 128; ++i) std::fwrite(block.data(), 1, block.size(), file); std::fclose(file);")
# The sum by one all-reduce, which fails "messages"; then a crash in the hidden part, of which the sizes are odd.
CRASHES_LATER = answer("if (data.size() == 12000) ranks.all_reduce(data); else { volatile float* nothing = nullptr; *nothing = 1; }")
WIPES_THE_REPORT = answer("""
  FILE* words = std::fopen("/proc/self/cmdline", "r"); std::string all; for (int c; (c = std::fgetc(words)) != EOF;) all += static_cast<char>(c);
  const auto at = all.find("--report") + 9; if (truncate(all.substr(at, all.find('\\0', at) - at).c_str(), 0)) {} std::_Exit(0);""")
WITHOUT_THE_FUNCTION = '#include "02_ring.hpp"\n'


def crashes(exercise):
    """The same for another exercise: whatever its function is called, loading the file is the end of it."""
    return f'#include "{exercise}.hpp"\nnamespace {{ struct Bad {{ Bad() {{ volatile int* nothing = nullptr; *nothing = 1; }} }} bad; }}\n'


def spoils(folder):
    """Folders and links where files were, locks, and a file where the folder was: the last one wins."""
    return answer(f"""
  namespace fs = std::filesystem; const fs::path desk = "{folder}";
  fs::remove(desk / "03_zero1.cpp"); fs::create_directories(desk / "03_zero1.cpp" / "deep");
  fs::remove(desk / "06_balance.cpp"); fs::create_symlink(desk / "02_ring.cpp", desk / "06_balance.cpp");
  fs::permissions(desk / "02_ring.cpp", fs::perms::none); fs::permissions(desk, fs::perms::none);""")


def becomes_a_file(folder):
    return answer(f"std::filesystem::remove_all(\"{folder}\"); if (FILE* file = std::fopen(\"{folder}\", \"w\")) std::fclose(file);")


def writes(file):
    """A student who gives marks."""
    return answer(f"if (FILE* file = std::fopen(\"{file}\", \"w\")) {{ std::fputs(\"student,points\\nmallory,1000\\n\", file); std::fclose(file); }} if (fork() == 0) {{ setsid(); for (;;) pause(); }}")


def deletes(folder):
    return answer(f"std::filesystem::remove_all(\"{folder}\"); std::filesystem::remove_all(std::filesystem::current_path());")
