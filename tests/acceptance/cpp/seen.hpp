// What a case saw, as one line of JSON.
#pragma once

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

inline std::string json(const std::string& text) {
    std::string out = "\"";
    for (unsigned char each : text) {
        if (each < 0x20 || each == '"' || each == '\\') {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", each);
            out += escaped;
        } else {
            out += static_cast<char>(each);
        }
    }
    return out + "\"";
}

inline std::string json(const char* text) { return json(std::string(text)); }
inline std::string json(bool value) { return value ? "true" : "false"; }
inline std::string json(int value) { return std::to_string(value); }

template <class A, class B>
std::string json(const std::pair<A, B>& both) {
    return "[" + json(both.first) + ", " + json(both.second) + "]";
}

template <class T>
std::string json(const std::vector<T>& items) {
    std::string out;
    for (const T& each : items) {
        out += (out.empty() ? "" : ", ") + json(each);
    }
    return "[" + out + "]";
}

class Seen {
  public:
    template <class T>
    Seen& put(const std::string& name, const T& value) {
        fields_ += (fields_.empty() ? "" : ", ") + json(name) + ": " + json(value);
        return *this;
    }
    std::string line() const { return "{" + fields_ + "}"; }

  private:
    std::string fields_;
};
