// Renders the chat template in a file with llama.cpp's Jinja: a JSON object of variables per line, a JSON string for each.
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

extern "C" void ggml_abort(const char *, int, const char *, ...) { std::abort(); }  // all that json.cpp calls of ggml

int main(int, char ** arguments) {
    std::stringstream text;
    text << std::ifstream(arguments[1]).rdbuf();
    jinja::lexer lexer;
    jinja::program program = jinja::parse_from_tokens(lexer.tokenize(text.str()));
    for (std::string line; std::getline(std::cin, line);) {
        jinja::context context(text.str());
        jinja::global_from_json(context, common_json::parse(line), true);
        jinja::runtime runtime(context);
        common_json result = runtime.gather_string_parts(runtime.execute(program))->as_string().str();
        std::cout << result.dump() << '\n';
    }
}
