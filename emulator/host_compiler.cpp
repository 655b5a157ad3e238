#include "host_compiler.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

extern char **environ;

namespace fajit_emu {

namespace {

std::string find_in_path(const std::string &name)
{
    struct stat st;
    if (name.find('/') != std::string::npos)
        return access(name.c_str(), X_OK) == 0 ? name : "";
    const char *path = getenv("PATH");
    std::string list = path && *path ? path : "/usr/local/bin:/usr/bin:/bin";
    for (size_t at = 0; at <= list.size();) {
        size_t end = list.find(':', at);
        if (end == std::string::npos)
            end = list.size();
        const std::string folder = list.substr(at, end - at);
        // An empty entry would be the working directory: no place for a compiler.
        const std::string whole = folder + "/" + name;
        if (!folder.empty() && stat(whole.c_str(), &st) == 0 && S_ISREG(st.st_mode) &&
            access(whole.c_str(), X_OK) == 0)
            return whole;
        at = end + 1;
    }
    return "";
}

std::vector<std::string> split(const char *text)
{
    std::vector<std::string> words;
    std::string word;
    for (; *text; text++)
        if (*text == ' ' || *text == '\t') {
            if (!word.empty())
                words.push_back(word);
            word.clear();
        } else {
            word += *text;
        }
    if (!word.empty())
        words.push_back(word);
    return words;
}

host_compiler look()
{
    host_compiler found;
    const char *chosen = getenv("CXX");
    std::vector<std::vector<std::string>> candidates;
    if (chosen && *chosen)
        candidates = {split(chosen)};
    else
        candidates = {{"clang++"}, {"g++"}};
    std::string tried;
    for (const auto &candidate : candidates) {
        if (candidate.empty())
            continue;
        tried += (tried.empty() ? "" : ", ") + candidate[0];
        found.path = find_in_path(candidate[0]);
        if (found.path.empty())
            continue;
        std::vector<std::string> words = candidate;
        words.push_back("--version");
        if (run_command(found.path, words, nullptr, &found.identity) != 0) {
            tried += " (which does not run)";
            continue;
        }
        found.command = candidate;
        found.gnu = found.identity.find("clang") == std::string::npos;
        for (size_t i = 1; i < candidate.size(); i++)
            found.identity += candidate[i] + "\n";
        return found;
    }
    found.problem = std::string(
                        "the emulator needs a C++ compiler: set CXX, or install clang++ or "
                        "g++; tried: ") +
                    tried;
    return found;
}

} // namespace

const host_compiler &host_compiler_find()
{
    static const host_compiler *found = new host_compiler(look());
    return *found;
}

int run_command(const std::string &program, const std::vector<std::string> &words,
                const char *where, std::string *output)
{
    int fd[2], status = 0;
    pid_t pid = 0;
    output->clear();
    if (pipe2(fd, O_CLOEXEC) != 0) {
        *output = std::string("pipe: ") + strerror(errno);
        return -1;
    }
    std::vector<char *> argv;
    for (const std::string &word : words)
        argv.push_back(const_cast<char *>(word.c_str()));
    argv.push_back(nullptr);
    // Messages in English, whatever the locale: they are searched.
    std::vector<char *> environment;
    static char locale[] = "LC_ALL=C";
    for (char **e = environ; *e; e++)
        if (strncmp(*e, "LC_ALL=", 7) != 0 && strncmp(*e, "LD_PRELOAD=", 11) != 0)
            environment.push_back(*e);
    environment.push_back(locale);
    environment.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, fd[1], 1);
    posix_spawn_file_actions_adddup2(&actions, fd[1], 2);
    if (where)
        posix_spawn_file_actions_addchdir_np(&actions, where);
    int error =
        posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environment.data());
    posix_spawn_file_actions_destroy(&actions);
    close(fd[1]);
    if (error) {
        close(fd[0]);
        *output = "cannot start " + program + ": " + strerror(error);
        return -1;
    }
    char buffer[4096];
    for (;;) {
        ssize_t got = read(fd[0], buffer, sizeof buffer);
        if (got > 0)
            output->append(buffer, static_cast<size_t>(got));
        else if (got == 0 || errno != EINTR)
            break;
    }
    close(fd[0]);
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) {
            *output += "\nwaitpid: " + std::string(strerror(errno));
            return -1;
        }
    if (!WIFEXITED(status)) {
        *output += "\n" + program + " was ended by signal " + std::to_string(WTERMSIG(status));
        return -1;
    }
    return WEXITSTATUS(status);
}

} // namespace fajit_emu
