package cli

import (
	"io"
	"strings"
)

// The program itself says what can follow: called with the words so far and
// --generate-bash-completion (urfave's, whatever the shell) it prints one
// candidate a line. The word being typed is passed on when it is a flag; "--"
// alone as "-", since it would end the flags.
var completions = map[string]string{
	"bash": `_FUNC() {
  local cur=${COMP_WORDS[COMP_CWORD]} words=("${COMP_WORDS[@]:0:COMP_CWORD}")
  case $cur in --) words+=(-) ;; -*) words+=("$cur") ;; esac
  mapfile -t COMPREPLY < <(compgen -W "$("${words[@]}" --generate-bash-completion 2>/dev/null)" -- "$cur")
}
complete -o bashdefault -o default -F _FUNC PROG
`,
	"zsh": `#compdef PROG
_FUNC() {
  local -a words_so_far candidates
  words_so_far=("${(@)words[1,CURRENT-1]}")
  case $words[CURRENT] in (--) words_so_far+=(-) ;; (-*) words_so_far+=("$words[CURRENT]") ;; esac
  candidates=("${(@f)$("${words_so_far[@]}" --generate-bash-completion 2>/dev/null)}")
  if [[ -n $candidates[1] ]]; then compadd -- $candidates; else _files; fi
}
compdef _FUNC PROG
`,
	"fish": `function _FUNC
    set -l words (commandline -opc)
    string match -q -- '-*' (commandline -ct); and set -a words (string replace -r '^--$' - -- (commandline -ct))
    $words --generate-bash-completion 2>/dev/null
end
complete -c PROG -a '(_FUNC)'
`,
}

func printCompletion(w io.Writer, program, shell string) error {
	replacer := strings.NewReplacer("FUNC", strings.ReplaceAll(program, "-", "_"), "PROG", program)
	_, err := replacer.WriteString(w, completions[shell])
	return err
}
