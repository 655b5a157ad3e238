# Completion of fajit(1) for bash. Operations, keys and values come from `fajit ops`, so that they
# are those of the tool that is installed.

_fajit_architectures='sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_90a sm_100 sm_100a sm_100f
    sm_101 sm_101a sm_101f sm_103 sm_103a sm_103f sm_110 sm_110a sm_110f sm_120 sm_120a sm_120f sm_121
    sm_121a sm_121f'

_fajit_words() {
    mapfile -t COMPREPLY < <(compgen -W "$1" -- "$2")
}

# The values of a key of an operation, when they are a list of words.
_fajit_values() {
    "$1" ops "$2" 2>/dev/null |
        awk -v key="$3" '$1 == key || $2 == key { for (i = 2; i <= NF; i++) if ($i ~ /\|/) {
            gsub(/\|/, " ", $i); print $i; exit } }'
}

# Names and aliases of the dimensions of an operation.
_fajit_dimensions() {
    "$1" ops "$2" 2>/dev/null |
        awk 'NR > 1 { for (i = 3; i <= 5; i++) if ($i == "yes") { print $1; if (i == 5) print $2 } }'
}

_fajit_paths() {
    mapfile -t COMPREPLY < <(compgen "$1" -- "$2")
    compopt -o filenames 2>/dev/null # a slash behind folders, and quotes where they are needed
}

_fajit() {
    local tool=${COMP_WORDS[0]} command='' operation='' word i
    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} key=''
    local commands='info ops compile verify bench source ptx sass warm cache help'
    COMPREPLY=()

    for ((i = 1; i < COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        [[ $word == -* || $word == '=' ]] && continue
        case ${COMP_WORDS[i - 1]} in --arch | --seeds | --jobs | --device | --cache-dir) continue ;; esac
        if [[ -z $command ]]; then
            command=$word
        elif [[ -z $operation ]]; then
            operation=$word
        fi
    done

    # bash splits at '=': the word under the cursor may be the value alone, or '=' itself.
    if [[ $current == '=' ]]; then
        key=$previous current=''
    elif [[ $previous == '=' ]]; then
        key=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $current == *=* && $current != -* ]]; then
        key=${current%%=*} current=${current#*=}
    fi

    if [[ $key == --dynamic ]]; then # a list: what is before the last comma stays
        local before=''
        [[ $current == *,* ]] && before=${current%,*},
        mapfile -t COMPREPLY < <(compgen -P "$before" \
            -W "$(_fajit_dimensions "$tool" "$operation")" -- "${current##*,}")
        return
    fi

    case $previous in
    --arch)
        _fajit_words "$_fajit_architectures" "$current"
        return
        ;;
    --cache-dir)
        _fajit_paths -d "$current"
        return
        ;;
    --seeds | --jobs | --device) return ;;
    esac

    if [[ -z $command && $current == -* ]]; then
        _fajit_words '--help --version' "$current"
        return
    elif [[ -z $command ]]; then
        _fajit_words "$commands" "$current"
        return
    fi

    if [[ $current == -* ]]; then
        local common='--json --help --version' run='--device --cache-dir --no-cache --emulate --verbose'
        case $command in
        info) _fajit_words "$run $common" "$current" ;;
        compile | source | ptx | sass) _fajit_words "--arch $run $common" "$current" ;;
        verify) _fajit_words "--seeds --dynamic $run $common" "$current" ;;
        bench) _fajit_words "--dynamic $run $common" "$current" ;;
        warm) _fajit_words "--arch --jobs $run $common" "$current" ;;
        cache) _fajit_words "--yes --remove --cache-dir --no-cache --verbose $common" "$current" ;;
        *) _fajit_words "$common" "$current" ;;
        esac
        return
    fi

    case $command in
    cache) [[ -n $operation ]] || _fajit_words 'list verify size clear path' "$current" ;;
    warm) _fajit_paths -f "$current" ;;
    help) [[ -n $operation ]] || _fajit_words "$commands" "$current" ;;
    ops | compile | verify | bench | source | ptx | sass)
        if [[ $key == file || $key == header* ]]; then
            _fajit_paths -f "$current"
        elif [[ -n $key ]]; then
            _fajit_words "$(_fajit_values "$tool" "$operation" "$key")" "$current"
        elif [[ -z $operation ]]; then
            _fajit_words "$("$tool" ops 2>/dev/null | awk 'NR > 1 { print $1 }')" "$current"
        elif [[ $command != ops ]]; then
            _fajit_words "$("$tool" ops "$operation" 2>/dev/null |
                awk 'NR > 1 { sub(/NAME$/, "", $1); print ($1 ~ /\.$/) ? $1 : $1 "=" }')" "$current"
            compopt -o nospace 2>/dev/null
        fi
        ;;
    esac
}

complete -F _fajit fajit
