"""`doctor completion SHELL`: what a shell needs to complete commands, options, checks, runs and targets.

The shell asks the doctor each time, by the variable ``_HERMES_DOCTOR_COMPLETE`` (`reply`), so that what it offers is
never older than the program.
"""

from __future__ import annotations

import os

import click

from hermes_doctor.cli.options import Output, page_options

#: Tells the program that it is a shell that asks, and which.
VARIABLE = "_HERMES_DOCTOR_COMPLETE"

_BASH = r"""# Completion of doctor and hermes-state-doctor for bash.
_hermes_state_doctor() {
    local IFS=$'\n' line program="${1/#\~/$HOME}"
    COMPREPLY=()
    while IFS= read -r line; do
        case "${line%%,*}" in
            plain) COMPREPLY+=("${line#*,}") ;;
            dir) compopt -o dirnames 2>/dev/null ;;
            file) compopt -o default 2>/dev/null ;;
        esac
    done < <(COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" VARIABLE=bash "$program" 2>/dev/null)
}
# Before 4.4 bash sorts what is offered.
complete -o nosort -F _hermes_state_doctor doctor hermes-state-doctor 2>/dev/null ||
    complete -o default -F _hermes_state_doctor doctor hermes-state-doctor
"""

_ZSH = r"""#compdef doctor hermes-state-doctor
# Completion of doctor and hermes-state-doctor for zsh.
_doctor() {
    local -a lines described
    local kind value told
    [[ $words[CURRENT] == --*=* ]] && compset -P '*='
    lines=("${(@f)$(COMP_WORDS="${(pj:\n:)words}" COMP_CWORD=$((CURRENT-1)) VARIABLE=zsh ${~words[1]} 2>/dev/null)}")
    for kind value told in "${lines[@]}"; do
        case "$kind" in
            plain) described+=("${value}${told:+:$told}") ;;
            dir) _files -/ ;;
            file) _files ;;
        esac
    done
    (( ${#described} )) && _describe -V 'doctor' described
}
# As a file _doctor on fpath this is the function's first body; it has just given itself a better one.
if [[ $funcstack[1] == _doctor ]]; then
    _doctor "$@"
else
    compdef _doctor doctor hermes-state-doctor
fi
"""

_FISH = r"""# Completion of doctor and hermes-state-doctor for fish.
function __hermes_state_doctor
    set -l words (commandline -opc)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    set -l answer (env COMP_WORDS=(string join \n -- $words | string collect) COMP_CWORD=(commandline -ct) \
        VARIABLE=fish $program 2>/dev/null)
    for line in $answer
        set -l parts (string split -m 1 , -- $line)
        switch $parts[1]
            case plain
                echo -- $parts[2]
            case dir
                __fish_complete_directories (commandline -ct)
            case file
                __fish_complete_path (commandline -ct)
        end
    end
end
for program in doctor hermes-state-doctor
    complete --no-files --command $program --arguments '(__hermes_state_doctor)'
end
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@click.command(short_help="Print what a shell needs to complete.")
@click.argument("shell", type=click.Choice(list(_SCRIPTS)))
@page_options
def completion(shell: str, output: Output) -> None:
    """Print the script by which bash, zsh or fish completes commands, options, checks, runs and targets.

    \b
    bash: echo 'eval "$(doctor completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(doctor completion zsh)"' >> ~/.zshrc    (below compinit)
    fish: doctor completion fish > ~/.config/fish/completions/doctor.fish
    """
    from hermes_doctor.cli.output import destination

    with destination(output.file) as stream:
        stream.write(_SCRIPTS[shell].replace("VARIABLE", VARIABLE))


def reply(shell: str) -> int:
    """Answer a shell that asks what may stand where the cursor is, a line for each; return the exit code."""
    from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

    from hermes_doctor.cli.app import app

    class Answer(ShellComplete):
        """What is common to the three: the words before the cursor come in COMP_WORDS."""

        name = shell
        source_template = ""

        def get_completion_args(self) -> tuple[list[str], str]:
            words, place = os.environ.get("COMP_WORDS", ""), os.environ.get("COMP_CWORD", "")
            if shell == "fish":
                # It has taken the words apart itself, and tells the one at the cursor apart.
                return words.split("\n")[1:], place
            split = split_arg_string(words)
            before, rest = split[1 : int(place)], split[int(place) :]
            # bash makes a word of the = between an option and its value.
            return [word for word in before if word != "="], rest[0] if rest else ""

        def format_completion(self, item: CompletionItem[str]) -> str:
            told = " ".join((item.help or "").split()).partition(". ")[0].rstrip(".")
            if shell == "bash":
                return f"{item.type},{item.value}"
            if shell == "zsh":
                value = item.value.replace(":", "\\:")
                return f"{item.type}\n{value}\n{told}"
            typed = os.environ.get("COMP_CWORD", "")
            prefix = typed.partition("=")[0] + "=" if typed.startswith("--") and "=" in typed else ""
            return f"{item.type},{prefix}{item.value}\t{told}"

    click.echo(Answer(app, {}, "doctor", VARIABLE).complete())
    return 0
